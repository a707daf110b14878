// Contexts of independent documents, and questions on them:
//
//   Documents of case 7.\n                                            the system line
//   Belna has code 47. It has color red. Seen: fox.\n                 2 to 16 documents
//   It also has size 12. Torvik has tree oak. Belna now has code 51.\n
//   Q: code of Belna?\n                                               a question
//   51\n                                                              its answer
//
// Every line is a piece: text that ends in its newline and that can be computed alone. What is
// learnt is the answers, each with its newline.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "document.h"
#include "packing.h"
#include "random.h"

namespace train {

// ---- words: 400 names, 16 attributes ----

inline constexpr std::string_view kNameStarts[] = {"Bel", "Tor", "Mar", "Kin", "Dov", "Lur", "Sab",
                                                   "Nel", "Gam", "Pir", "Hoz", "Fen", "Wil", "Rud",
                                                   "Cas", "Jot", "Vex", "Zan", "Ost", "Ubi"};
inline constexpr std::string_view kNameEnds[] = {"na",  "vik", "do", "ra",  "lem", "tis", "pol",
                                                 "gan", "mo",  "sy", "ber", "cu",  "dax", "fi",
                                                 "hol", "jin", "ka", "wen", "zu",  "ler"};

struct Attribute {
  std::string_view name;
  std::span<const std::string_view> values;  // none: a number of two digits
};

inline constexpr std::string_view kColors[] = {"red",  "blue", "green", "white",
                                               "pink", "gray", "black", "brown"};
inline constexpr std::string_view kMetals[] = {"iron", "gold", "zinc", "lead",
                                               "tin",  "neon", "steel"};
inline constexpr std::string_view kFruits[] = {"plum", "fig",  "kiwi", "pear",
                                               "lime", "date", "mango"};
inline constexpr std::string_view kTrees[] = {"oak", "elm", "ash", "birch", "yew", "palm", "cedar"};
inline constexpr std::string_view kDrinks[] = {"tea", "milk", "cola", "rum", "water", "juice"};
inline constexpr std::string_view kCloths[] = {"silk", "wool", "felt", "linen", "denim", "lace"};
inline constexpr Attribute kAttributes[] = {
    {"age", {}},        {"code", {}},     {"depth", {}},      {"level", {}},
    {"mass", {}},       {"price", {}},    {"rank", {}},       {"size", {}},
    {"speed", {}},      {"width", {}},    {"color", kColors}, {"metal", kMetals},
    {"fruit", kFruits}, {"tree", kTrees}, {"drink", kDrinks}, {"cloth", kCloths}};
inline constexpr int kAttributeCount = static_cast<int>(std::size(kAttributes));
inline constexpr std::string_view kSeen[] = {"fox",  "owl",  "wolf", "crow",
                                             "bear", "hare", "toad", "swan"};
inline constexpr std::string_view kNone = "none";  // the answer where nothing is said

inline std::string draw_value(int attribute, Rng& rng) {
  const Attribute& kind = kAttributes[attribute];
  return kind.values.empty() ? std::to_string(rng.between(10, 99))
                             : std::string(any_of(kind.values, rng));
}

/// Another value than `value`.
inline std::string draw_other_value(int attribute, const std::string& value, Rng& rng) {
  for (;;)
    if (std::string other = draw_value(attribute, rng); other != value) return other;
}

/// Names, none twice.
class Names {
 public:
  explicit Names(Rng& rng) : rng_(rng) {}

  std::string draw() {
    for (;;) {
      std::string name(any_of<std::string_view>(kNameStarts, rng_));
      name += any_of<std::string_view>(kNameEnds, rng_);
      if (std::ranges::find(drawn_, name) != drawn_.end()) continue;
      drawn_.push_back(name);
      return name;
    }
  }

 private:
  Rng& rng_;
  std::vector<std::string> drawn_;
};

// ---- questions ----

struct Question {
  std::string text, answer;  // without newlines
  bool few_answers = false;  // of so few that question and answer alone say nothing
};

/// Whether a question is held out: training asks no such question with that answer. A tenth is. Of
/// questions with few answers, such as how many, training would otherwise teach that they never
/// have the one that is right; there the hash is of the context too.
inline bool held_out(const Question& question, std::string_view context) {
  const std::string asked = question.text + '\n' + question.answer;
  return hash_of(question.few_answers ? std::string(context) + asked : asked) % 10 == 0;
}

// ---- contexts ----

enum class Told { kPlainly, kBefore, kInside, kCorrected };

struct Fact {
  int subject, attribute;
  std::string value;  // as corrected last
  int document;       // that told it last
  Told told;  // kBefore: a document begins with it, of a name in the one before; kInside: it
              // stands in the middle, also of the one before
};

struct Shape {
  int fewest = 2, most = 16;  // documents
  double longer = 0.3;        // share of documents of more than about 200 bytes
  bool join = false;          // all but the first document are continuations of it
};

struct Context {
  std::string system;
  std::vector<std::string> documents;
  bool join;
  std::vector<std::string> names;  // the subjects
  std::vector<Fact> facts;
  std::vector<std::pair<std::string, int>> seen;  // a word and how many documents say it

  std::string text() const {
    std::string all = system;
    for (const std::string& document : documents) all += document;
    return all;
  }
};

/// One context while it is written. A document is sections, each of one subject, with what refers
/// to other documents at its beginning or between sections, so that "It" always means the subject
/// named last.
class ContextWriter {
 public:
  ContextWriter(const Shape& shape, Rng& rng) : shape_(shape), rng_(rng), names_(rng) {}

  Context write() {
    context_.system = "Documents of case " + std::to_string(rng_.between(1, 9)) + ".\n";
    context_.join = shape_.join;
    static constexpr double kShares[] = {0.15, 0.3, 0.5, 0.8};
    for (const int first = rng_.below(std::size(kSeen)); const int step : {0, 3}) {
      context_.seen.emplace_back(kSeen[(first + step) % std::size(kSeen)], 0);
      seen_share_.push_back(any_of<double>(kShares, rng_));
    }
    const int documents = rng_.between(shape_.fewest, shape_.most);
    for (int i = 0; i < documents; ++i) write_document(i);
    return std::move(context_);
  }

 private:
  void write_document(int number) {
    text_.clear();
    document_ = number;
    const int before = last_subject_;
    const bool refers = number > 0 && !shape_.join;
    if (refers && rng_.chance(0.35)) tell("It also has ", before, Told::kBefore);
    bool inside = refers && rng_.chance(0.35);
    std::vector<std::size_t> to_say;
    for (std::size_t i = 0; i < context_.seen.size(); ++i)
      if (rng_.chance(seen_share_[i])) to_say.push_back(i);
    const int target = rng_.chance(shape_.longer) ? rng_.between(160, 320) : rng_.between(110, 140);
    bool whole = false;
    while (!whole || std::ssize(text_) < target) {
      write_section();
      whole = !inside;
      if (inside) tell("The one before has ", before, Told::kInside);
      inside = false;
      if (number > 0 && !shape_.join && rng_.chance(0.25)) correct();
      if (!to_say.empty() && rng_.chance(0.5)) say_seen(to_say);
    }
    while (!to_say.empty()) say_seen(to_say);
    while (text_.size() < 128) write_section();
    text_.back() = '\n';  // in place of the last space
    context_.documents.push_back(text_);
  }

  void write_section() {
    // A continuation also tells of what the common document names.
    int subject = static_cast<int>(context_.names.size());
    if (shape_.join && document_ > 0 && rng_.chance(0.3)) {
      subject = rng_.below(common_subjects_);
    } else {
      context_.names.push_back(names_.draw());
      told_.push_back(0);
      if (document_ == 0) common_subjects_ = subject + 1;
    }
    const std::string named = context_.names[subject] + " has ";
    tell(named, subject, Told::kPlainly);
    for (int more = rng_.between(1, 3); more > 0; --more)
      tell(rng_.chance(0.5) ? "It has " : named, subject, Told::kPlainly);
    last_subject_ = subject;
  }

  /// Says something of the subject that was not said yet, if there is anything.
  void tell(std::string_view opening, int subject, Told told) {
    if (told_[subject] == (1 << kAttributeCount) - 1) return;
    int attribute;
    do {
      attribute = rng_.below(kAttributeCount);
    } while (told_[subject] >> attribute & 1);
    told_[subject] |= 1 << attribute;
    context_.facts.push_back({subject, attribute, draw_value(attribute, rng_), document_, told});
    sentence(opening, context_.facts.back());
  }

  /// Corrects what an earlier document says, if one of a few drawn facts can be.
  void correct() {
    for (int tries = 0; tries < 8; ++tries) {
      Fact& fact = context_.facts[rng_.below(static_cast<int>(context_.facts.size()))];
      if (fact.document == document_ ||
          (fact.told != Told::kPlainly && fact.told != Told::kCorrected))
        continue;
      fact.value = draw_other_value(fact.attribute, fact.value, rng_);
      fact.document = document_;
      fact.told = Told::kCorrected;
      return sentence(context_.names[fact.subject] + " now has ", fact);
    }
  }

  void say_seen(std::vector<std::size_t>& to_say) {
    auto& [word, documents] = context_.seen[to_say.back()];
    to_say.pop_back();
    ++documents;
    ((text_ += "Seen: ") += word) += ". ";
  }

  void sentence(std::string_view opening, const Fact& fact) {
    (((text_ += opening) += kAttributes[fact.attribute].name) += ' ') += fact.value;
    text_ += ". ";
  }

  const Shape& shape_;
  Rng& rng_;
  Names names_;
  Context context_;
  std::vector<double> seen_share_;
  std::vector<int> told_;  // by subject: a bit an attribute
  std::string text_;       // of this document
  int document_ = 0, last_subject_ = -1, common_subjects_ = 0;
};

// ---- questions on contexts ----

inline constexpr std::string_view kContextClasses[] = {"Q1", "Q2", "Q3", "Q4", "Q5", "Q6"};

inline std::string asked(const Context& context, const Fact& fact) {
  return std::string(kAttributes[fact.attribute].name) + " of " + context.names[fact.subject];
}

/// A random fact that was told so, of `from` on.
inline const Fact* find_fact(const Context& context, Told told, int from, Rng& rng) {
  std::vector<const Fact*> found;
  for (const Fact& fact : context.facts)
    if (fact.told == told && fact.document >= from) found.push_back(&fact);
  return found.empty() ? nullptr : any_of<const Fact*>(found, rng);
}

/// A question of a class: Q1 one fact; Q2 two facts of two documents; Q3 one that is the beginning
/// of a document on the one before; Q4 one in its middle; Q5 how many documents say a word; Q6 one
/// that was corrected; join: one of a continuation, or how many. Nothing if the context has none.
inline std::optional<Question> ask(const Context& context, std::string_view name, Rng& rng) {
  if (name == "join") name = rng.chance(0.75) ? "Q1" : "Q5";
  if (name == "Q5") {
    const auto& [word, documents] = context.seen[rng.below(static_cast<int>(context.seen.size()))];
    return Question{"Q: documents with " + word + "?", std::to_string(documents), true};
  }
  const Told told = name == "Q3"   ? Told::kBefore
                    : name == "Q4" ? Told::kInside
                    : name == "Q6" ? Told::kCorrected
                                   : Told::kPlainly;
  const Fact* fact = find_fact(context, told, context.join ? 1 : 0, rng);
  if (fact == nullptr) return {};
  if (name != "Q2") return Question{"Q: " + asked(context, *fact) + '?', fact->value};
  const Fact* second = find_fact(context, told, 0, rng);
  if (second->document == fact->document) return {};
  return Question{"Q: " + asked(context, *fact) + ", " + asked(context, *second) + '?',
                  fact->value + ", " + second->value};
}

/// What nothing is said of.
inline Question ask_for_nothing(const Context& context, Rng& rng) {
  for (;;) {
    const Fact fact{rng.below(static_cast<int>(context.names.size())),
                    rng.below(kAttributeCount),
                    {},
                    0,
                    Told::kPlainly};
    if (std::ranges::none_of(context.facts, [&](const Fact& other) {
          return other.subject == fact.subject && other.attribute == fact.attribute;
        }))
      return {"Q: " + asked(context, fact) + '?', std::string(kNone), true};
  }
}

/// A context as text to learn from: pieces, then questions with answers. `pieces`: of each piece
/// the number that its tokens carry in a row (packing.h).
class Lesson {
 public:
  void add(std::string_view text, int piece) {
    document_.text += text;
    document_.marks.insert(document_.marks.end(), text.size(),
                           static_cast<std::uint16_t>(piece << kPieceShift));
  }
  void add(const Question& question, int piece) {
    add(question.text + '\n', piece);
    if (document_.learnt_from == 0) document_.learnt_from = document_.text.size();
    const std::size_t from = document_.text.size();
    add(question.answer + '\n', piece);
    for (std::size_t i = from; i < document_.marks.size(); ++i) document_.marks[i] |= kLearnt;
  }
  /// A question twice would be answered by copying.
  bool asks(const Question& question) const {
    return document_.text.find('\n' + question.text + '\n') != std::string::npos;
  }
  Document take() { return std::move(document_); }

 private:
  Document document_{.text = {}, .learnt_from = 0, .ends = false};
};

/// A context with several questions of training's side of the split. `alone`: each document sees
/// the system line (in joins, the common document too) and itself only.
inline Document draw_context_lesson(const Shape& shape, bool alone, Rng& rng) {
  const Context context = ContextWriter(shape, rng).write();
  Lesson lesson;
  lesson.add(context.system, 0);
  int piece = context.join ? -1 : 0;
  for (const std::string& document : context.documents) lesson.add(document, alone ? ++piece : 0);
  const std::string text = context.text();
  const int count = rng.between(8, 12) + static_cast<int>(context.documents.size());
  for (int left = count, tries = 8 * count; left > 0 && tries > 0; --tries) {
    std::optional<Question> question;
    if (rng.chance(0.05))
      question = ask_for_nothing(context, rng);
    else
      question =
          ask(context, context.join ? "join" : any_of<std::string_view>(kContextClasses, rng), rng);
    if (!question || lesson.asks(*question) || held_out(*question, text)) continue;
    lesson.add(*question, alone ? kSeesAll : 0);
    --left;
  }
  return lesson.take();
}

}  // namespace train
