// Any bytes as a body of the server: refused with status 400, or a value within the limits that is
// the same once written and read again, and whose members can be asked for in every way.
#include <algorithm>
#include <string>

#include "fuzz.h"
#include "server/json.h"

namespace {

using namespace dendrite::server;

constexpr JsonLimits kLimits{.depth = 16, .values = 500};

struct Size {
  int depth = 0;
  std::size_t values = 1;
};

Size size_of(const Json& value) {
  Size out;
  if (!value.is_structured()) return out;
  for (const Json& each : value) {
    const Size of = size_of(each);
    out.depth = std::max(out.depth, of.depth);
    out.values += of.values;
  }
  ++out.depth;
  return out;
}

void check_fault(const Fault& fault) {
  fuzz_check(fault.status == 400, "what is wrong with a body is status 400");
  const Json error = Json::parse(error_json(fault));
  fuzz_check(error["error"]["message"].get<std::string>().size() <= 1100, "messages are short");
}

template <typename Read>
void tried(const Read& read) {
  try {
    read();
  } catch (const Fault& fault) {
    check_fault(fault);
  }
}

void read_members(const Json& object) {
  Fields fields(object, "");
  for (const auto& [name, value] : object.items()) {
    if (name.size() % 2 == 0) continue;  // which nobody asks for
    tried([&] { fields.boolean(name); });
    tried([&] {
      const auto number = fields.integer(name, -5, INT64_MAX);
      fuzz_check(!number || *number >= -5, "numbers are in their range");
    });
    tried([&] {
      const auto number = fields.number(name, 0, 2);
      fuzz_check(!number || (*number >= 0 && *number <= 2), "numbers are in their range");
    });
    tried([&] {
      const auto text = fields.text(name, 8);
      fuzz_check(!text || text->size() <= 8, "texts are as short as asked for");
    });
    tried([&] { fields.array(name, 3); });
    tried([&] { fields.object(name); });
    tried([&] { fields.word(name, {"a", "auto"}); });
    tried([&] { fields.refuse(name, "it is not supported"); });
    if (value.is_object()) read_members(value);
  }
  Ignored ignored;
  fields.rest(ignored);
  const std::string header = ignored.header();
  fuzz_check(header.size() <= 1024, "headers are short");
  fuzz_check(std::ranges::all_of(header, [](char c) { return c >= ' ' && c < 127; }),
             "headers are printable");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz_check(Json::accept(echoed(text)), "what is echoed is JSON");
  try {
    const Json value = parse_json(text, kLimits);
    const Size of = size_of(value);
    fuzz_check(of.depth <= kLimits.depth, "it is no deeper than allowed");
    fuzz_check(of.values <= kLimits.values, "it has no more values than allowed");
    const std::string written = dump(value);
    fuzz_check(parse_json(written, kLimits) == value, "what is written is what was read");
    fuzz_check(written.find('\n') == std::string::npos, "it is on one line");
    fuzz_check(event(value).ends_with("\n\n"), "events end");
    if (value.is_object()) read_members(value);
  } catch (const Fault& fault) {
    check_fault(fault);
  }
  return 0;
}
