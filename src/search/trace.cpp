#include "dendrite/search/trace.h"

#include <cmath>
#include <istream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

#include "dendrite/error.h"

namespace dendrite {
namespace {

using Json = nlohmann::ordered_json;

constexpr SearchEvent::Kind kKinds[] = {SearchEvent::Kind::kProposed, SearchEvent::Kind::kJudged,
                                        SearchEvent::Kind::kVisited,  SearchEvent::Kind::kKept,
                                        SearchEvent::Kind::kPruned,   SearchEvent::Kind::kSolved};

void write(std::ostream& out, const Json& line) {
  out << line.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
}

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

/// A line of a trace being read: its fields, or an Error that names it.
class Line {
 public:
  Line(std::int64_t line_number, const std::string& text) : number_(line_number) {
    json_ = Json::parse(text, nullptr, false);
    if (!json_.is_object()) fail("is not a JSON object");
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error("trace: line " + std::to_string(number_) + " " + what);
  }
  bool has(const char* key) const { return json_.contains(key); }
  template <typename T>
  T get(const char* key) const {
    return get_from<T>(json_, key);
  }
  const Json& at(const char* key) const {
    if (!json_.contains(key)) fail(std::string("has no \"") + key + "\"");
    return json_.at(key);
  }
  template <typename T>
  T get_from(const Json& json, const char* key) const {
    try {
      return json.at(key).get<T>();
    } catch (const Json::exception&) {
      fail(std::string("lacks \"") + key + "\", or has it in another type than expected");
    }
  }
  /// A number, NaN for null.
  double real(const char* key) const { return at(key).is_null() ? std::nan("") : get<double>(key); }

 private:
  std::int64_t number_;
  Json json_;
};

TraceHeader header_of(const Line& line) {
  TraceHeader header;
  header.version = line.get<int>("trace");
  if (header.version != kTraceVersion) {
    line.fail("says version " + std::to_string(header.version) + "; expected " +
              std::to_string(kTraceVersion));
  }
  header.strategy = line.get<std::string>("strategy");
  header.seed = line.get<std::uint64_t>("seed");
  header.prompt = line.get<std::string>("prompt");
  header.model = line.get<std::string>("model");
  header.numerics = line.get<std::string>("numerics");
  for (const auto& [name, value] : line.at("params").items()) {
    if (!value.is_string()) line.fail("has a parameter \"" + name + "\" that is not a text");
    header.params.emplace_back(name, value.get<std::string>());
  }
  return header;
}

TraceEvent event_of(const Line& line, std::int64_t nodes) {
  TraceEvent event;
  const auto name = line.get<std::string>("event");
  bool known = false;
  for (const SearchEvent::Kind kind : kKinds) {
    if (name != name_of(kind)) continue;
    event.kind = kind;
    known = true;
  }
  if (!known) line.fail("has the event \"" + name + "\", which no trace of this version has");
  event.node = line.get<std::int64_t>("node");
  if (line.has("ms")) event.ms = line.get<double>("ms");
  const std::int64_t last = nodes + (event.kind == SearchEvent::Kind::kProposed ? 1 : 0);
  const std::int64_t first = event.kind == SearchEvent::Kind::kProposed ? last : 1;
  if (event.node < first || event.node > last) {
    line.fail("tells of node " + std::to_string(event.node) + "; expected " +
              std::to_string(first) + " to " + std::to_string(last));
  }
  switch (event.kind) {
    case SearchEvent::Kind::kProposed:
      event.parent = line.get<std::int64_t>("parent");
      if (event.parent < 0 || event.parent >= event.node) {
        line.fail("has the parent " + std::to_string(event.parent) + "; expected an earlier node");
      }
      event.depth = line.get<int>("depth");
      event.text = line.get<std::string>("text");
      event.tokens = line.get<std::vector<Token>>("tokens");
      event.logprob = line.real("logprob");
      if (line.has("joined")) event.joined = line.get<std::vector<std::int64_t>>("joined");
      for (const std::int64_t node : event.joined) {
        if (node < 1 || node >= event.node) {
          line.fail("joins node " + std::to_string(node) + "; expected earlier nodes");
        }
      }
      break;
    case SearchEvent::Kind::kVisited:
      event.visits = line.get<std::int64_t>("visits");
      event.value = line.real("value");
      break;
    case SearchEvent::Kind::kJudged:
      event.value = line.real("value");
      break;
    default:
      break;
  }
  return event;
}

TraceResult result_of(const Line& line) {
  const Json& json = line.at("result");
  TraceResult result;
  result.solved = line.get_from<bool>(json, "solved");
  result.finish = line.get_from<std::string>(json, "finish");
  result.path = line.get_from<std::vector<std::int64_t>>(json, "path");
  result.nodes = line.get_from<std::int64_t>(json, "nodes");
  if (json.contains("votes")) {
    for (const auto& [answer, count] :
         line.get_from<std::vector<std::pair<std::string, int>>>(json, "votes")) {
      result.votes.push_back({answer, count});
    }
  }
  return result;
}

/// A line of a trace without its time.
std::string without_time(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || json.erase("ms") == 0) return text;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

TraceHeader& TraceHeader::with(std::string name, std::string value) {
  params.emplace_back(std::move(name), std::move(value));
  return *this;
}

const std::string& TraceHeader::param(std::string_view name) const {
  for (const auto& [key, value] : params) {
    if (key == name) return value;
  }
  throw Error("trace: the header has no parameter \"" + std::string(name) + "\"");
}

TraceHeader trace_header(const Engine& engine, StrategyInfo strategy, std::uint64_t seed,
                         std::string prompt) {
  TraceHeader header;
  header.strategy = std::move(strategy.name);
  header.params = std::move(strategy.params);
  header.seed = seed;
  header.prompt = std::move(prompt);
  std::filesystem::path folder = engine.info().model_path;
  if (!folder.has_filename()) folder = folder.parent_path();
  header.model = folder.filename().string();
  header.numerics = engine.info().numerics_key;
  return header;
}

SearchTrace::SearchTrace(std::ostream& out, const TraceHeader& header, bool times)
    : out_(out), times_(times), begin_(std::chrono::steady_clock::now()) {
  Json params = Json::object();
  for (const auto& [name, value] : header.params) params[name] = value;
  write(out_, {{"trace", header.version},
               {"strategy", header.strategy},
               {"params", std::move(params)},
               {"seed", header.seed},
               {"prompt", header.prompt},
               {"model", header.model},
               {"numerics", header.numerics}});
}

void SearchTrace::on(const SearchEvent& event) {
  const Thought& thought = *event.thought;
  Json line{{"event", name_of(event.kind)}, {"node", static_cast<std::int64_t>(thought.node)}};
  switch (event.kind) {
    case SearchEvent::Kind::kProposed: {
      line["parent"] = static_cast<std::int64_t>(thought.parent);
      line["depth"] = thought.depth;
      line["text"] = thought.text;
      std::vector<Token> tokens = thought.branch.tokens();
      tokens.erase(tokens.begin(), tokens.end() - thought.tokens);
      line["tokens"] = std::move(tokens);
      line["logprob"] = number(thought.logprob);
      for (const NodeId node : thought.joined) {
        line["joined"].push_back(static_cast<std::int64_t>(node));
      }
      break;
    }
    case SearchEvent::Kind::kVisited:
      line["value"] = number(thought.value);
      line["visits"] = thought.visits;
      break;
    case SearchEvent::Kind::kJudged:
      line["value"] = number(thought.value);
      break;
    default:
      break;
  }
  if (times_) {
    const std::chrono::duration<double, std::milli> since =
        std::chrono::steady_clock::now() - begin_;
    line["ms"] = since.count();
  }
  write(out_, line);
}

void SearchTrace::finish(const SearchResult& result) {
  Json path = Json::array();
  for (const ThoughtRecord& step : result.path)
    path.push_back(static_cast<std::int64_t>(step.node));
  Json out{{"solved", result.solved},
           {"finish", name_of(result.finish)},
           {"path", std::move(path)},
           {"nodes", result.tree.size()}};
  for (const Vote& vote : result.votes)
    out["votes"].push_back(Json::array({vote.answer, vote.count}));
  write(out_, {{"result", std::move(out)}});
  out_.flush();
}

Trace read_trace(std::istream& in) {
  Trace trace;
  std::int64_t number = 0;
  std::int64_t nodes = 0;
  for (std::string text; std::getline(in, text);) {
    const Line line(++number, text);
    if (number == 1) {
      trace.header = header_of(line);
    } else if (trace.result) {
      line.fail("comes after the result");
    } else if (line.has("result")) {
      trace.result = result_of(line);
    } else {
      trace.events.push_back(event_of(line, nodes));
      nodes += trace.events.back().kind == SearchEvent::Kind::kProposed;
    }
  }
  if (number == 0) throw Error("trace: it is empty; expected a header on the first line");
  return trace;
}

std::string TraceDifference::message() const {
  const auto shown = [](const std::string& text) { return text.empty() ? "(the end)" : text; };
  return "line " + std::to_string(line) + " differs\n  expected " + shown(expected) +
         "\n  got      " + shown(got);
}

std::optional<TraceDifference> compare_traces(std::istream& expected, std::istream& got) {
  for (std::int64_t line = 1;; ++line) {
    TraceDifference lines{line, {}, {}};
    const bool more_expected = static_cast<bool>(std::getline(expected, lines.expected));
    const bool more_got = static_cast<bool>(std::getline(got, lines.got));
    if (!more_expected && !more_got) return std::nullopt;
    lines.expected = without_time(lines.expected);
    lines.got = without_time(lines.got);
    if (lines.expected != lines.got) return lines;
  }
}

std::optional<TraceDifference> replay(
    std::istream& trace,
    const std::function<void(const TraceHeader& header, std::ostream& out)>& search) {
  std::stringstream expected;
  expected << trace.rdbuf();
  const TraceHeader header = read_trace(expected).header;
  expected.clear();
  expected.seekg(0);
  std::stringstream got;
  search(header, got);
  return compare_traces(expected, got);
}

}  // namespace dendrite
