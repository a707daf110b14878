// Text that must be something: a choice, a regex, a JSON schema. Tokens that could not be part of
// it are never drawn. A branch that is under a constraint forks inside of a value like any other,
// and what its constraint refuses scores -infinity.
#include <dendrite/dendrite.h>

#include <cstdio>
#include <exception>

namespace {
using namespace dendrite;

constexpr const char* kRequest =
    R"([{"role": "user", "content": "Set an alarm for 7:30 pm on Sunday."}])";

constexpr const char* kSchema = R"({
  "type": "object", "required": ["name", "arguments"], "additionalProperties": false,
  "properties": {
    "name": {"const": "set_alarm"},
    "arguments": {
      "type": "object", "required": ["time", "day"], "additionalProperties": false,
      "properties": {
        "time": {"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"},
        "day": {"enum": ["saturday", "sunday"]}}}}})";

/// What a fork that has `text` writes in one call, held to a constraint for that call.
std::string complete(Session& session, Branch& branch, const std::string& text,
                     const Constraint& constraint) {
  Branch fork = branch.fork();
  fork.append(text);
  return session.decode(fork, {.temperature = 0, .constraint = constraint}).text;
}

}  // namespace

int main(int argc, char** argv) try {
  const Engine engine = Engine::load(argc > 1 ? argv[1] : "models/dendrite-tools");
  Session session(engine, {.seed = 1});
  Branch request = session.prefill(engine.render_chat(kRequest), {.add_special = false});

  const std::string tool = complete(session, request, R"({"name":")",
                                    Constraint::choice({"play_music", "set_alarm", "set_timer"}));
  const std::string time =
      complete(session, request, R"({"name":"set_alarm","arguments":{"time":")",
               Constraint::regex("([01][0-9]|2[0-3]):[0-5][0-9]"));
  std::printf("choice  %s\nregex   %s\n", tool.c_str(), time.c_str());

  // A constraint of the branch holds over several calls, and in all forks.
  request.constrain(Constraint::json_schema(kSchema));
  session.decode(request, {.stop = {R"("time":")"}, .temperature = 0});
  std::vector<Branch> forks = request.fork(4);  // each inside of the same string
  session.decode(forks, {.temperature = 6});    // random, but whole
  for (const Branch& fork : forks) {
    std::printf("schema  %s (%s)\n", fork.text().c_str(), name_of(fork.finish()));
  }

  const std::vector<std::string> rests = {R"(19:30","day":"sunday"}})",
                                          R"(19:30","day":"monday"}})"};
  for (const Score& score : request.score(rests)) std::printf("score   %.3f\n", score.logprob);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "structured_output: %s\n", error.what());
  return 1;
}
