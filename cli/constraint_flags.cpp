#include "constraint_flags.h"

#include <iostream>
#include <map>
#include <utility>

#include "common.h"

namespace dendrite::cli {

/// Each excludes the others: given together they are wrong usage.
void ConstraintFlags::add(CLI::Option* option, const char* type, std::function<Constraint()> make) {
  option->group("What the text must be (one of these)")->type_name(type);
  for (const Flag& other : flags_) option->excludes(other.option);
  flags_.push_back({option, std::move(make)});
}

void ConstraintFlags::add_json_to(CLI::App& app) {
  add(app.add_option("--json-schema", schema_file_, "JSON that this schema describes"), "FILE",
      [this] { return Constraint::json_schema(read_file(schema_file_)); });
  add(app.add_flag("--json-object", json_object_, "Any JSON object"), "", Constraint::json_object);
}

void ConstraintFlags::add_to(CLI::App& app) {
  add_json_to(app);
  add(app.add_option("--regex", regex_, "What all of it matches, in Rust's syntax"), "RE",
      [this] { return Constraint::regex(regex_); });
  add(app.add_option("--grammar", grammar_file_, "What this Lark grammar's rule start describes"),
      "FILE", [this] { return Constraint::lark(read_file(grammar_file_)); });
  add(app.add_option("--choice", choices_, "One of these texts (repeatable)")
          ->take_all()
          ->expected(1),
      "TEXT", [this] { return Constraint::choice(choices_); });
}

std::optional<Constraint> ConstraintFlags::constraint(const Engine& engine) const {
  for (const auto& [option, make] : flags_) {
    if (option->count() == 0) continue;
    Constraint constraint = make();
    const bool file = option->get_type_name() == "FILE";
    try {
      engine.check(constraint);
    } catch (const Error& error) {
      throw Error(option->get_name() + (file ? " " + option->results().front() : "") + ": " +
                  error.what());
    }
    return constraint;
  }
  return std::nullopt;
}

void note_unfinished(std::span<const Branch> branches) {
  std::map<Finish, int> unfinished;
  for (const Branch& branch : branches) {
    const Finish finish = branch.finish();
    if (finish == Finish::kStop || finish == Finish::kCancelled) continue;
    const bool inside = finish == Finish::kStopInside || finish == Finish::kDeadEnd;
    if (inside || !branch.is_accepted()) ++unfinished[finish];
  }
  for (const auto& [finish, count] : unfinished) {
    std::cerr << "note: " << count << " of " << branches.size()
              << " texts ended before what the constraint asks for: " << name_of(finish) << "\n";
  }
}

}  // namespace dendrite::cli
