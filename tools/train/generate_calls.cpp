// Writes training data for the model of tool calls, and what is shipped beside it.
//
//   g++ -O3 -std=c++20 -pthread generate_calls.cpp -o generate_calls
//
//   generate_calls rows [--phase 1|2] [--seed N] [--threads N] [--blocks N]
//       packed rows (packing.h) to stdout, endless without --blocks; phase 1: requests and calls in
//       rows of 256 tokens, phase 2: half of the documents are chats (call_chats.h), in rows of
//       1024
//   generate_calls docs [--split train|heldout] [--count N] [--seed N]
//   generate_calls tools                                          the schemas, tools.json
//   generate_calls heldout [--listed N] [--invented N] [--seed N] heldout.jsonl: requests, calls
//   generate_calls chats [--answers N] [--calls N] [--seed N]     heldout_chats.jsonl: messages,
//   what follows
#include <set>
#include <string>

#include "call_chats.h"
#include "options.h"
#include "packing.h"

namespace train {
namespace {

// ---- schemas, as JSON Schema objects ----

std::string type_of(const Slot& slot) {
  switch (slot.kind) {
    case Kind::kName:
    case Kind::kText:
    case Kind::kTime:
    case Kind::kDigits:
      return "string";
    case Kind::kInteger:
      return "integer";
    case Kind::kNumber:
      return "number";
    case Kind::kChoice:
      return slot.choices[0].value[0] == '"' ? "string" : "boolean";
  }
  return "";
}

std::string schema_of(const Slot& slot) {
  const std::string type = type_of(slot);
  std::string schema = R"({"type": ")" + type + '"';
  if (slot.kind == Kind::kChoice && type == "string") {
    std::set<std::string_view> seen;
    std::string values;
    for (const Choice& choice : slot.choices)
      if (seen.insert(choice.value).second) (values += values.empty() ? "" : ", ") += choice.value;
    schema += R"(, "enum": [)" + values + ']';
  }
  return schema + '}';
}

/// Whether every wording says the slot, so that every call has it.
bool required(const Tool& tool, const Slot& slot) {
  const std::string said = '{' + std::string(slot.name) + '}';
  return std::ranges::all_of(tool.wordings, [&](std::string_view wording) {
    int optional = 0;
    for (std::size_t i = 0; i < wording.size(); ++i) {
      optional += (wording[i] == '[') - (wording[i] == ']');
      if (optional == 0 && wording.substr(i).starts_with(said)) return true;
    }
    return false;
  });
}

/// The slots that stand in `object`, or the arguments themselves with their inner objects.
std::string object_schema(const Tool& tool, std::string_view object) {
  std::string properties, names;
  const auto add = [&](std::string_view name, const std::string& schema, bool needed) {
    ((((properties += properties.empty() ? "" : ", ") += '"') += name) += "\": ") += schema;
    if (needed) (((names += names.empty() ? "" : ", ") += '"') += name) += '"';
  };
  std::set<std::string_view> inner;
  for (const Slot& slot : tool.slots) {
    if (slot.inside == object)
      add(slot.name, schema_of(slot), required(tool, slot));
    else if (object.empty() && inner.insert(slot.inside).second)
      add(slot.inside, object_schema(tool, slot.inside), required(tool, slot));
  }
  return R"({"type": "object", "required": [)" + names + R"(], "properties": {)" + properties +
         "}}";
}

void print_tools() {
  std::printf("[\n");
  for (const Tool& tool : tools())
    std::printf(" {\"name\": \"%s\", \"description\": \"%s\",\n  \"parameters\": %s}%s\n",
                std::string(tool.name).c_str(), std::string(tool.description).c_str(),
                object_schema(tool, "").c_str(), &tool == &tools().back() ? "" : ",");
  std::printf("]\n");
}

// ---- what is measured ----

std::string escaped(const std::string& text) {
  std::string json;
  for (const char c : text) (json += c == '"' ? "\\" : "") += c;
  return json;
}

/// `count` different held-out calls, by turns of each tool, with one request each. A tool that has
/// no more different calls is passed over.
void print_held_out(int count, bool invented, Rng& rng) {
  std::set<std::string> seen;
  for (std::size_t turn = 0, passed = 0; count > 0 && passed < tools().size(); ++turn) {
    const Tool& tool = tools()[turn % tools().size()];
    std::optional<Request> found;
    for (int tries = 0; tries < 1000 && !found; ++tries) {
      Request request = draw_request(tool, Split::kHeldOut, rng);
      if (request.invented == invented && seen.insert(request.call).second)
        found = std::move(request);
    }
    passed = found ? 0 : passed + 1;
    if (!found) continue;
    --count;
    std::printf("{\"request\": \"%s\", \"call\": %s, \"invented\": %s}\n",
                escaped(found->text).c_str(), found->call.c_str(), invented ? "true" : "false");
  }
}

/// As JSON has it. Results have no control characters.
std::string quoted(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) (json += c == '"' || c == '\\' ? "\\" : "") += c;
  return json + '"';
}

/// A turn as a message in OpenAI's form.
std::string message_of(const Turn& turn) {
  std::string json = R"({"role": ")" + turn.role + R"(", "content": )";
  if (!turn.calls) return json + quoted(turn.text) + '}';
  return json + R"("", "tool_calls": [{"type": "function", "function": )" + turn.text + "}]}";
}

/// `count` held-out chats and what an assistant says after them: a call, or an answer, of
/// which no two are the same.
void print_chats(int count, bool calls, Rng& rng) {
  std::set<std::string> seen;
  while (count > 0) {
    const std::vector<Turn> turns = draw_chat(Split::kHeldOut, rng);
    const Turn& last = turns.back();
    if (last.calls != calls || chat_document(turns).text.size() > kChatRowTokens) continue;
    if (!seen.insert(last.text).second) continue;
    std::string messages;
    for (const Turn& turn : turns)
      if (&turn != &last) (messages += messages.empty() ? "" : ", ") += message_of(turn);
    std::printf("{\"messages\": [%s], \"%s\": %s}\n", messages.c_str(), calls ? "call" : "answer",
                calls ? last.text.c_str() : quoted(last.text).c_str());
    --count;
  }
}

void run(Options options) {
  const std::string& command = options.command();
  const std::uint64_t seed = options.take_uint64("--seed", "1");
  if (command == "rows") {
    const int phase = options.take_int("--phase", "1");
    const int threads = options.take_int("--threads", "1");
    const std::uint64_t blocks = options.take_uint64("--blocks", "0");
    options.check_all_taken();
    if (phase != 1 && phase != 2)
      throw std::invalid_argument("--phase: got " + std::to_string(phase) + ", expected 1 or 2");
    const Draw draw = [phase](Rng& rng) {
      return phase == 1 ? draw_call(Split::kTrain, rng) : draw_call_or_chat(Split::kTrain, rng);
    };
    write_rows([&] { return draw; }, seed, threads, blocks,
               phase == 1 ? kRowTokens : kChatRowTokens);
  } else if (command == "docs") {
    const Split split = options.take_split();
    const int count = options.take_int("--count", "10");
    options.check_all_taken();
    print_documents([split](Rng& rng) { return draw_call(split, rng); }, count, seed);
  } else if (command == "tools") {
    options.check_all_taken();
    print_tools();
  } else if (command == "heldout") {
    const int listed = options.take_int("--listed", "300");
    const int invented = options.take_int("--invented", "100");
    options.check_all_taken();
    Rng rng(seed, 0);
    print_held_out(listed, false, rng);
    print_held_out(invented, true, rng);
  } else if (command == "chats") {
    const int answers = options.take_int("--answers", "150");
    const int calls = options.take_int("--calls", "50");
    options.check_all_taken();
    Rng rng(seed, 0);
    print_chats(answers, false, rng);
    print_chats(calls, true, rng);
  } else {
    throw std::invalid_argument(
        "usage: generate_calls rows|docs|tools|heldout|chats [--option value]...; got '" + command +
        "'");
  }
}

}  // namespace
}  // namespace train

int main(int argc, char** argv) {
  return train::run_generator("generate_calls", argc, argv, train::run);
}
