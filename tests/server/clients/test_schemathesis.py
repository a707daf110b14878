"""The server by its own description: schemathesis makes requests of /openapi.json, right and wrong ones."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from served import served

HERE = pathlib.Path(__file__).parent
CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
          "response_schema_conformance", "allow_header_conformance", "use_after_free", "ignored_auth", "events_conform"]


class SchemathesisTest(unittest.TestCase):
    def test_answers_are_as_described(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = pathlib.Path(folder) / "keys"
            keys.write_text("one\n")
            flags = ["--api-key-file", str(keys), "--max-n", "4", "--max-model-len", "128", "--threads", "2"]
            with served("dendrite-24", *flags) as url:
                status = subprocess.run(
                    [pathlib.Path(sys.executable).parent / "st", "run", f"{url}/openapi.json", "--checks", ",".join(CHECKS),
                     "--header", "Authorization: Bearer one", "--max-examples", os.environ.get("EXAMPLES", "15"),
                     "--seed", "1", "--generation-deterministic", "--continue-on-failure", "--request-timeout", "60",
                     "--suppress-health-check", "all", "--warnings", "off",
                     "--no-color"],
                    cwd=folder, env={**os.environ, "SCHEMATHESIS_HOOKS": "openapi_hooks", "PYTHONPATH": str(HERE.resolve())},
                    check=False).returncode
        self.assertEqual(status, 0)


if __name__ == "__main__":
    unittest.main()
