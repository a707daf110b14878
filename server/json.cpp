#include "server/json.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace dendrite::server {
namespace {

constexpr std::size_t kMostMessage = 1024;
constexpr std::size_t kMostEchoed = 200;

Fault invalid_json(const std::string& message) {
  return bad_request("", "the body is not valid JSON: " + message, "invalid_json");
}

/// The beginning of a text that is whole characters.
std::string_view whole_characters(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return text.substr(0, most);
}

/// Reads a text without building anything, and stops at what is too much.
class Checker : public nlohmann::json_sax<Json> {
 public:
  explicit Checker(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool string(string_t&) override { return value(); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return open();
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override { return open(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    return fail("the key " + echoed(name) + " is twice in one object");
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    const std::string text = error.what();
    return fail(text.find("invalid UTF-8") != std::string::npos ||
                        text.find("ill-formed UTF-8") != std::string::npos
                    ? "at byte " + std::to_string(position) + " is no UTF-8"
                : text.find("out_of_range") != std::string::npos
                    ? "a number at byte " + std::to_string(position) + " is out of range"
                    : "something else is expected at byte " + std::to_string(position));
  }

  const std::string& reason() const { return reason_; }

 private:
  bool open() {
    if (++depth_ > limits_.depth) {
      return fail("it is nested deeper than " + std::to_string(limits_.depth) + " levels");
    }
    return value();
  }
  bool value() {
    if (++values_ <= limits_.values) return true;
    return fail("it has more than " + std::to_string(limits_.values) + " values");
  }
  bool fail(std::string reason) {
    if (reason_.empty()) reason_ = std::move(reason);
    return false;
  }

  JsonLimits limits_;
  int depth_ = 0;
  std::size_t values_ = 0;
  std::vector<std::set<std::string>> keys_;
  std::string reason_;
};

std::string kind_of(const Json& value) {
  if (value.is_string()) return echoed(value.get_ref<const std::string&>());
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  return echoed(value.dump());
}

std::string number_text(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15
             ? std::to_string(static_cast<std::int64_t>(value))
             : Json(value).dump();
}

}  // namespace

Fault::Fault(int status, std::string type, std::string code, std::string param, std::string message)
    : status(status),
      type(std::move(type)),
      code(std::move(code)),
      param(whole_characters(param, kMostEchoed)),
      message(whole_characters(message, kMostMessage)) {}

Fault bad_request(std::string param, std::string message, std::string code) {
  if (!param.empty()) message = param + ": " + message;
  return {400, "invalid_request_error", std::move(code), std::move(param), std::move(message)};
}

Fault not_found(std::string message, std::string param, std::string code) {
  return {404, "invalid_request_error", std::move(code), std::move(param), std::move(message)};
}

Fault unavailable(std::string code, std::string message) {
  return {503, "server_error", std::move(code), "", std::move(message)};
}

std::string echoed(std::string_view text) {
  const std::string_view shown = whole_characters(text, kMostEchoed);
  std::string out = Json(shown).dump(-1, ' ', false, Json::error_handler_t::replace);
  if (shown.size() < text.size()) out.insert(out.size() - 1, "...");
  return out;
}

std::string error_json(const Fault& fault) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return dump({{"error",
                {{"message", fault.message},
                 {"type", fault.type},
                 {"param", or_null(fault.param)},
                 {"code", or_null(fault.code)}}}});
}

Json parse_json(std::string_view text, const JsonLimits& limits) {
  Checker checker(limits);
  if (!Json::sax_parse(text.begin(), text.end(), &checker)) throw invalid_json(checker.reason());
  return Json::parse(text.begin(), text.end());
}

Json parse_body(std::string_view text) {
  Json body = parse_json(text);
  if (!body.is_object()) {
    throw bad_request("", "the body is " + kind_of(body) + "; expected an object");
  }
  return body;
}

std::string dump(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  const auto replace_all = [&](std::string_view what, std::string_view by) {
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at)) {
      text.replace(at, what.size(), by);
      at += by.size();
    }
  };
  replace_all("\xC2\x85", "\\u0085");
  replace_all("\xE2\x80\xA8", "\\u2028");
  replace_all("\xE2\x80\xA9", "\\u2029");
  return text;
}

std::string event(const Json& data, std::string_view name) {
  std::string out;
  if (!name.empty()) out.append("event: ").append(name).append("\n");
  return out + "data: " + dump(data) + "\n\n";
}

void Ignored::add(std::string path) {
  if (std::ranges::find(paths_, path) == paths_.end()) paths_.push_back(std::move(path));
}

std::string Ignored::header() const {
  std::string out;
  for (const std::string& path : paths_) {
    const bool printable =
        std::ranges::all_of(path, [](char c) { return c > ' ' && c < 127 && c != ','; });
    if (!printable || out.size() + path.size() + 2 > kMostMessage) continue;
    if (!out.empty()) out += ", ";
    out += path;
  }
  return out;
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) throw wrong_type(path_, object, "an object");
}

std::string Fields::path(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

const Json* Fields::find(std::string_view name) {
  known_.emplace_back(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> Fields::boolean(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) throw wrong_type(path(name), *value, "true or false");
  return value->get<bool>();
}

std::optional<std::int64_t> Fields::integer(std::string_view name, std::int64_t least,
                                            std::int64_t most) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const std::string expected =
      "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  const bool too_large =
      value->is_number_unsigned() && value->get<std::uint64_t>() > std::uint64_t{INT64_MAX};
  std::int64_t number = 0;
  if (value->is_number_integer() && !too_large) {
    number = value->get<std::int64_t>();
  } else if (value->is_number_float() && std::floor(value->get<double>()) == value->get<double>() &&
             std::abs(value->get<double>()) < 9e15) {
    number = static_cast<std::int64_t>(value->get<double>());
  } else {
    throw wrong_type(path(name), *value, expected);
  }
  if (number < least || number > most) throw wrong_type(path(name), *value, expected);
  return number;
}

std::optional<double> Fields::number(std::string_view name, double least, double most) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const bool right = value->is_number() && value->get<double>() >= least &&
                     value->get<double>() <= most;  // not NaN
  if (!right) {
    throw wrong_type(path(name), *value,
                     "a number from " + number_text(least) + " to " + number_text(most));
  }
  return value->get<double>();
}

std::optional<std::string> Fields::text(std::string_view name, std::size_t most_bytes) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) throw wrong_type(path(name), *value, "a text");
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() > most_bytes) {
    throw bad_request(path(name), "it has " + std::to_string(text.size()) +
                                      " bytes; expected at most " + std::to_string(most_bytes));
  }
  return text;
}

const Json* Fields::array(std::string_view name, std::size_t most) {
  const Json* value = find(name);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) throw wrong_type(path(name), *value, "an array");
  if (value->size() > most) {
    throw bad_request(path(name), "it has " + std::to_string(value->size()) +
                                      " elements; expected at most " + std::to_string(most));
  }
  return value;
}

const Json* Fields::object(std::string_view name) {
  const Json* value = find(name);
  if (value != nullptr && !value->is_object()) throw wrong_type(path(name), *value, "an object");
  return value;
}

std::optional<std::string> Fields::word(std::string_view name,
                                        const std::vector<std::string_view>& words) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  std::string expected;
  for (const std::string_view each : words) {
    if (value->is_string() && value->get_ref<const std::string&>() == each) {
      return std::string(each);
    }
    expected += (expected.empty() ? "" : ", ") + std::string(each);
  }
  Fault fault = wrong_type(path(name), *value, words.size() > 1 ? "one of " + expected : expected);
  fault.code = "unsupported_value";
  throw fault;
}

void Fields::refuse(std::string_view name, std::string_view why) {
  const Json* value = find(name);
  if (value == nullptr || *value == false || (value->is_structured() && value->empty()) ||
      *value == "") {
    return;
  }
  throw bad_request(path(name), std::string(why), "unsupported_parameter");
}

void Fields::rest(Ignored& ignored) const {
  for (const auto& [name, value] : object_.items()) {
    if (std::ranges::find(known_, name) == known_.end()) ignored.add(path(name));
  }
}

std::string at_index(std::string_view path, std::size_t i) {
  return std::string(path) + "[" + std::to_string(i) + "]";
}

Fault wrong_type(std::string_view path, const Json& got, std::string_view expected) {
  return bad_request(std::string(path),
                     "got " + kind_of(got) + "; expected " + std::string(expected));
}

}  // namespace dendrite::server
