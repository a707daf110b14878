// Transcripts of an agent, questions on them, and edits of them:
//
//   Transcript of case 7.\n                                 the system line
//   > get Belna\n                                           a call
//   < Belna: code 47, color red, size 12, tree oak.\n       its result
//   # Belna code 47, state calm.\n                          a note, which quotes a value
//   Q: code of Belna in result?\n
//   47\n
//
// Every line is a turn and a piece, with its newline. A note may differ from the result that it
// quotes, so that questions say which of the two they mean.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contexts.h"

namespace train {

inline constexpr std::string_view kStates[] = {"calm", "busy", "idle", "late",
                                               "safe", "open", "done", "warm"};
inline constexpr std::string_view kTranscriptClasses[] = {"result", "note", "state"};

/// A call and what follows it.
struct Visit {
  std::string name;
  std::vector<std::pair<int, std::string>> result;  // attributes and values; none: no result
  int quoted = -1;                                  // the note's attribute; -1: there is no note
  std::string noted;                                // its value
  std::string state;

  std::string call() const { return "> get " + name + '\n'; }
  std::string result_line() const {
    std::string line = "< " + name + ':';
    for (std::size_t i = 0; i < result.size(); ++i)
      (((line += i > 0 ? ", " : " ") += kAttributes[result[i].first].name) += ' ') +=
          result[i].second;
    return line + ".\n";
  }
  std::string note() const {
    return "# " + name + ' ' + std::string(kAttributes[quoted].name) + ' ' + noted + ", state " +
           state + ".\n";
  }
};

struct TranscriptShape {
  int fewest = 8, most = 30;  // turns, give or take two
  int longest_result = 9;     // values
};

struct Transcript {
  std::string system;
  std::vector<Visit> visits;

  std::string text() const {
    std::string all = system;
    for (const Visit& visit : visits) {
      all += visit.call();
      if (!visit.result.empty()) all += visit.result_line();
      if (visit.quoted >= 0) all += visit.note();
    }
    return all;
  }
};

inline Transcript draw_transcript(const TranscriptShape& shape, Rng& rng) {
  Transcript transcript{.system = "Transcript of case " + std::to_string(rng.between(1, 9)) + ".\n",
                        .visits = {}};
  Names names(rng);
  const int target = rng.between(shape.fewest, shape.most);
  for (int turns = 0; turns < target;) {
    Visit visit{.name = names.draw(), .result = {}, .noted = {}, .state = {}};
    std::vector<int> attributes(kAttributeCount);
    for (int i = 0; i < kAttributeCount; ++i) attributes[i] = i;
    const int values = rng.chance(0.15) ? rng.between(1, 2) : rng.between(3, shape.longest_result);
    for (int i = 0; i < values; ++i) {
      std::swap(attributes[i], attributes[rng.between(i, kAttributeCount - 1)]);
      visit.result.emplace_back(attributes[i], draw_value(attributes[i], rng));
    }
    if (rng.chance(0.8)) {
      const auto& [attribute, value] = visit.result[rng.below(values)];
      visit.quoted = attribute;
      visit.noted = rng.chance(0.2) ? draw_other_value(attribute, value, rng) : value;
      visit.state = any_of<std::string_view>(kStates, rng);
    }
    if (rng.chance(0.12)) visit.result.clear();
    turns += 1 + !visit.result.empty() + (visit.quoted >= 0);
    transcript.visits.push_back(std::move(visit));
  }
  return transcript;
}

// ---- questions ----

/// What a question asks for. Its answer is looked up, so that an edit may change it.
struct Target {
  std::string_view about;  // of kTranscriptClasses
  std::string name;
  int attribute = -1;

  std::string question() const {
    if (about == "state") return "Q: last state?";
    return "Q: " + std::string(kAttributes[attribute].name) + " of " + name + " in " +
           std::string(about) + '?';
  }
};

inline std::string answer(const Target& target, const std::vector<Visit>& visits) {
  std::string found(kNone);
  for (const Visit& visit : visits) {
    if (target.about == "state" && visit.quoted >= 0) found = visit.state;
    if (visit.name != target.name) continue;
    if (target.about == "note" && visit.quoted == target.attribute) found = visit.noted;
    if (target.about == "result")
      for (const auto& [attribute, value] : visit.result)
        if (attribute == target.attribute) found = value;
  }
  return found;
}

inline Question question_of(const Target& target, const Transcript& transcript) {
  Question question{target.question(), answer(target, transcript.visits)};
  question.few_answers = target.about == "state" || question.answer == kNone;
  return question;
}

/// A target of a class that the transcript has an answer to, half of results one that a note
/// quotes.
inline std::optional<Target> draw_target(const Transcript& transcript, std::string_view about,
                                         Rng& rng) {
  const Visit& visit = transcript.visits[rng.below(static_cast<int>(transcript.visits.size()))];
  Target target{about, visit.name, visit.quoted};
  if (about == "result" && !visit.result.empty() && (visit.quoted < 0 || rng.chance(0.5)))
    target.attribute = visit.result[rng.below(static_cast<int>(visit.result.size()))].first;
  if (about != "state" && target.attribute < 0) return {};
  if (about == "state") target = {about, {}, -1};
  if (answer(target, transcript.visits) == kNone) return {};
  return target;
}

inline Document draw_transcript_lesson(const TranscriptShape& shape, Rng& rng) {
  const Transcript transcript = draw_transcript(shape, rng);
  const std::string text = transcript.text();
  Lesson lesson;
  lesson.add(text, 0);
  for (int left = rng.between(8, 14), tries = 100; left > 0 && tries > 0; --tries) {
    const bool nothing = rng.chance(0.15);
    std::optional<Target> target;
    if (nothing)  // most likely: of a name that is there, an attribute that is not
      target = {kTranscriptClasses[rng.below(2)], any_of<Visit>(transcript.visits, rng).name,
                rng.below(kAttributeCount)};
    else
      target = draw_target(transcript, any_of<std::string_view>(kTranscriptClasses, rng), rng);
    if (!target) continue;
    const Question question = question_of(*target, transcript);
    if (lesson.asks(question) || held_out(question, text)) continue;
    lesson.add(question, 0);
    --left;
  }
  return lesson.take();
}

// ---- edits, to measure only ----

/// A turn after an edit: one that was there, by its number, or new text.
struct Turn {
  int number;  // -1: new
  std::string text;
};

/// A transcript whose visits are edited while every line remembers which turn it was.
class EditedTranscript {
 public:
  struct Lines {
    Visit visit;
    int call = -1, result = -1, note = -1;  // turns; -1: rewritten, if there is one
  };

  explicit EditedTranscript(const Transcript& transcript) {
    int turn = 0;
    for (const Visit& visit : transcript.visits) {
      Lines lines{.visit = visit};
      lines.call = turn++;
      if (!visit.result.empty()) lines.result = turn++;
      if (visit.quoted >= 0) lines.note = turn++;
      lines_.push_back(std::move(lines));
    }
  }

  std::vector<Lines>& lines() { return lines_; }

  std::vector<Turn> turns() const {
    std::vector<Turn> turns;
    for (const Lines& lines : lines_) {
      turns.push_back({lines.call, lines.visit.call()});
      if (!lines.visit.result.empty()) turns.push_back({lines.result, lines.visit.result_line()});
      if (lines.visit.quoted >= 0) turns.push_back({lines.note, lines.visit.note()});
    }
    return turns;
  }

  std::vector<Visit> visits() const {
    std::vector<Visit> visits;
    for (const Lines& lines : lines_) visits.push_back(lines.visit);
    return visits;
  }

 private:
  std::vector<Lines> lines_;
};

inline constexpr std::string_view kEdits[] = {"drop_unreferenced", "drop_referenced", "summarize",
                                              "replace_quoted", "move"};

/// Makes an edit; nothing if the transcript has no place for it.
///   drop_unreferenced: some results of which the target is none
///   drop_referenced:   the turn that has the answer
///   summarize:         a result to one of its values, and that of the target
///   replace_quoted:    a value of a result that the note behind it quotes, the target's if it can
///   be move:              a visit to the beginning or the end, the target's half of the time
inline std::optional<EditedTranscript> edit(const Transcript& transcript, std::string_view kind,
                                            const Target& target, Rng& rng) {
  EditedTranscript edited(transcript);
  std::vector<EditedTranscript::Lines>& lines = edited.lines();
  const auto of_target = [&](const Visit& visit) { return visit.name == target.name; };
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Visit& visit = lines[i].visit;
    const bool result = !visit.result.empty();
    if (kind == "drop_unreferenced" ? result && !of_target(visit)
        : kind == "drop_referenced"
            ? (target.about == "state" ? visit.quoted >= 0 : of_target(visit))
        : kind == "summarize"      ? visit.result.size() > 2
        : kind == "replace_quoted" ? result && visit.quoted >= 0
                                   : lines.size() > 1)
      candidates.push_back(i);
  }
  if (candidates.empty()) return {};
  // The target's own where it is among them, of summaries and moves half of the time.
  std::size_t chosen = any_of<std::size_t>(candidates, rng);
  if (kind == "replace_quoted" || rng.chance(0.5))
    for (const std::size_t i : candidates)
      if (of_target(lines[i].visit)) chosen = i;
  Visit& visit = lines[chosen].visit;
  if (kind == "drop_unreferenced") {
    for (const std::size_t i : candidates)
      if (i == chosen || rng.chance(0.4)) lines[i].visit.result.clear();
  } else if (kind == "drop_referenced") {
    if (target.about == "result")
      visit.result.clear();
    else
      lines[target.about == "state" ? candidates.back() : chosen].visit.quoted = -1;
  } else if (kind == "summarize") {
    lines[chosen].result = -1;
    const auto kept = visit.result[rng.below(static_cast<int>(visit.result.size()))];
    std::erase_if(visit.result, [&](const auto& value) {
      return value != kept && !(of_target(visit) && value.first == target.attribute);
    });
  } else if (kind == "replace_quoted") {
    lines[chosen].result = -1;
    for (auto& [attribute, value] : visit.result)
      if (attribute == visit.quoted) value = draw_other_value(attribute, value, rng);
  } else {
    const auto from = lines.begin() + static_cast<std::ptrdiff_t>(chosen);
    if (chosen > 0 && (chosen + 1 == lines.size() || rng.chance(0.5)))
      std::rotate(lines.begin(), from, from + 1);
    else
      std::rotate(from, from + 1, lines.end());
  }
  return edited;
}

}  // namespace train
