"""The workflows run what .ci/run, scripts/nightly.sh and scripts/gpu_check.sh have, all of it and nothing else."""
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKFLOWS = ROOT / ".github/workflows"
OWN = {"make", "cmake", "ctest"}  # beside which a step may run scripts of the tree


def parts_of(script):
    return subprocess.run([ROOT / script, "--list"], check=True, capture_output=True, text=True).stdout.split()


def jobs_of(workflow):
    """Of each job its text, without comments."""
    text = re.sub(r"(?m)(^|\s)#.*$", "", (WORKFLOWS / workflow).read_text(encoding="utf-8"))
    jobs = re.split(r"(?m)^  (\w+):\s*$", text.partition("\njobs:\n")[2])
    return dict(zip(jobs[1::2], jobs[2::2]))


def commands_of(job):
    """What its steps run, with each value of a matrix put in."""
    matrix = {name: re.split(r",\s*", values) for name, values in re.findall(r"(\w+): \[([^]]*)\]", job)}
    for line in re.findall(r"(?m)^\s*(?:- )?run: (.+)$", job):
        used = re.search(r"\$\{\{ matrix\.(\w+) \}\}", line)
        for value in matrix[used[1]] if used else [""]:
            yield (line.replace(used[0], value) if used else line).split()


def named(workflow, script):
    """The parts of a script that a workflow runs; without any, all."""
    found = set()
    for job in jobs_of(workflow).values():
        for command in commands_of(job):
            if command[0] == script:
                found |= set(command[1:]) or set(parts_of(script))
    return found


class Workflows(unittest.TestCase):
    def test_pull_requests_run_every_stage(self):
        self.assertEqual(named("ci.yml", ".ci/run"), set(parts_of(".ci/run")))

    def test_every_job_of_pull_requests_begins_with_the_tools(self):
        for name, job in jobs_of("ci.yml").items():
            stages = [command for command in commands_of(job) if command[0] == ".ci/run"]
            self.assertTrue(stages, name)
            for command in stages:
                self.assertEqual(command[1], "tools", name)

    def test_nights_run_every_part(self):
        self.assertEqual(named("nightly.yml", "scripts/nightly.sh"), set(parts_of("scripts/nightly.sh")))

    def test_what_runs_all_tests_has_the_history(self):
        # bench.pages is one of them; in a shallow clone it says that it cannot look for the commits of samples, and passes.
        for workflow, stages in (("ci.yml", {"readme", "asan"}), ("nightly.yml", {"asan", "tsan"})):
            jobs = [job for job in jobs_of(workflow).values() if stages & {word for c in commands_of(job) for word in c}]
            self.assertTrue(jobs)
            for job in jobs:
                self.assertRegex(job, r"checkout@v4\n\s*with: \{ fetch-depth: 0 \}")

    def test_gpu_runs_parts_that_exist(self):
        parts = named("gpu.yml", "scripts/gpu_check.sh") - {"build-cuda"}
        self.assertEqual(parts - set(parts_of("scripts/gpu_check.sh")), set())
        self.assertEqual(parts, {"tests", "race", "mem", "init"})

    def test_what_a_step_runs_is_here(self):
        for workflow in sorted(path.name for path in WORKFLOWS.glob("*.yml")):
            for job in jobs_of(workflow).values():
                for command in commands_of(job):
                    if command[0] not in OWN | {"sudo"}:
                        self.assertTrue((ROOT / command[0]).is_file(), f"{workflow}: {command[0]}")

    def test_a_stage_builds_the_programs_that_it_runs(self):
        made = re.search(r"(?m)^build:.*\n(?:\t.*\n)*?\t.*--target (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"))[1].split()
        found = 0
        for name, body in re.findall(r"(?ms)^run_(\w+)\(\) \{\n(.*?)^\}", (ROOT / ".ci/run").read_text(encoding="utf-8")):
            targets = set(made) | {target for line in re.findall(r"--target (.+)", body) for target in line.split()}
            for program in re.findall(r"(?m)^\s*build[\w-]*/\w+/([\w-]+)", body):
                found += 1
                self.assertIn(program, targets, name)
        self.assertGreater(found, 5)

    def test_jobs_end_in_time(self):
        limits = {(workflow, name): int(re.search(r"timeout-minutes: (\d+)", job)[1])
                  for workflow in ("ci.yml", "gpu.yml") for name, job in jobs_of(workflow).items()}
        self.assertLessEqual(limits["ci.yml", "fast"], 5)
        self.assertLessEqual(limits["ci.yml", "cpu"], 20)
        self.assertLessEqual(limits["gpu.yml", "gpu"], 45)

    def test_a_name_that_is_none_is_refused_before_anything_runs(self):
        for script in (".ci/run", "scripts/nightly.sh", "scripts/gpu_check.sh"):
            names = ["build-cuda", "sanitize"] if "gpu" in script else [parts_of(script)[0], "sanitize"]
            ran = subprocess.run([ROOT / script, *names], capture_output=True, text=True)
            self.assertEqual(ran.returncode, 2, script)
            self.assertEqual(ran.stdout, "")
            self.assertIn("got sanitize; expected", ran.stderr)


if __name__ == "__main__":
    unittest.main()
