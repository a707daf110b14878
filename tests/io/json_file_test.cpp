#include "io/json_file.h"

#include <sys/stat.h>

#include "io/mapped_file.h"
#include "test_files.h"

namespace dendrite {
namespace {

JsonDocument parse(const std::string& text) {
  return JsonDocument::parse(text, "c.json");
}

TEST(MappedFile, HoldsTheFilesBytes) {
  const test::TempFolder folder;
  const MappedFile file(folder.write("f", "bytes"));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file.data()), 5), "bytes");
  EXPECT_EQ(file.size_bytes(), 5);
  for (const std::int64_t offset : {-1, 0, 4, 5, 6}) file.read_ahead(offset, 100);  // never fails
  MappedFile moved(MappedFile(folder.path() / "f"));
  moved = MappedFile(folder.write("g", "other"));
  EXPECT_EQ(std::to_integer<char>(moved.data()[0]), 'o');
}

TEST(MappedFile, SaysWhyAFileCannotBeMapped) {
  const test::TempFolder folder;
  EXPECT_ERROR(MappedFile(folder.path() / "none"),
               (folder.path() / "none").string() + ": cannot open: No such file");
  EXPECT_ERROR(MappedFile(folder.path()), "is a directory, expected a file");
  EXPECT_ERROR(MappedFile(folder.write("empty", "")), "is empty (0 bytes)");
  const std::filesystem::path pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_ERROR(MappedFile(pipe), "is not a regular file");
}

TEST(JsonDocument, SaysWhereReadingStopped) {
  EXPECT_ERROR(parse("{\"a\": tru}"),
               "c.json: is not valid JSON: stopped at byte 10 (it has 10 bytes)");
  EXPECT_ERROR(parse("{\"a\": 1"), "ends too early (it has 7 bytes)");
  EXPECT_ERROR(parse(""), "ends too early");
  EXPECT_ERROR(parse("{} {}"), "stopped at byte 4");
  EXPECT_ERROR(parse("{\"a\": \"\xc3\"}"), "not valid JSON");  // not UTF-8
  EXPECT_ERROR(parse("{\"a\": NaN}"), "not valid JSON");
  EXPECT_ERROR(parse("{\"a\": 1e999}"), "a number too large");
  EXPECT_ERROR(parse("[1, 2]").root(), "c.json: is a list of 2, expected a JSON object");
}

TEST(JsonDocument, TakesNumbersThatJsonLacksByTheirNames) {
  EXPECT_EQ(with_named_floats(R"({"a": [1.0, Infinity], "b": -Infinity, "c": NaN})"),
            R"({"a": [1.0, {"__float__": "Infinity"}], "b": {"__float__": "-Infinity"}, )"
            R"("c": {"__float__": "NaN"}})");
  for (const char* same :
       {R"({"Infinity": "NaN \" , Infinity"})", R"("\\")", "\"Infinity", "\"\\", ""}) {
    EXPECT_EQ(with_named_floats(same), same);
  }
  EXPECT_EQ(with_named_floats(R"("\\"NaN)"), R"("\\"{"__float__": "NaN"})");
  const auto document =
      parse(with_named_floats(R"({"a": [0.5, Infinity], "b": [1, 2], "c": [0.5, "x"]})"));
  const auto limits = document.root().find_limits("a");
  ASSERT_TRUE(limits);
  EXPECT_EQ(limits->first, 0.5);
  EXPECT_EQ(limits->second, std::numeric_limits<double>::infinity());
  EXPECT_EQ(document.root().find_limits("b"), std::pair(1.0, 2.0));
  EXPECT_EQ(document.root().find_limits("d"), std::nullopt);
  EXPECT_ERROR(document.root().find_limits("c"), "a list of two numbers from 0 on");
}

TEST(JsonDocument, StaysWithinItsLimits) {
  const test::TempFolder folder;
  const auto file = folder.write("c.json", "{\"a\": 1}  ");
  EXPECT_ERROR(JsonDocument::read(file, {.max_bytes = 9}), "has 10 bytes, expected at most 9");
  EXPECT_EQ(JsonDocument::read(file, {.max_bytes = 10}).root().require_int("a"), 1);
  EXPECT_ERROR(parse(std::string(1'000'000, '[')), "is nested deeper than 64 levels");
  EXPECT_ERROR(JsonDocument::parse("[1,2,3,4]", "c.json", {.max_values = 4}),
               "holds more than 4 values");
  // Freeing a deep tree must not need a deep stack.
  const int deep = 1'000'000;
  JsonDocument::parse(std::string(deep, '[') + std::string(deep, ']'), "c.json",
                      {.max_values = 3 * deep, .max_depth = 2 * deep});
}

TEST(JsonDocument, TreatsKeysWrittenTwiceAsAsked) {
  const std::string twice = R"({"x": {"a": 1, "a": 2}, "y": {"a": 3}})";
  EXPECT_EQ(parse(twice).root().require_object("x").require_int("a"), 2);
  EXPECT_ERROR(JsonDocument::parse(twice, "c.json", {}, DuplicateKeys::kRefuse),
               "key \"a\" is written twice in one object");
  JsonDocument::parse(R"({"a": [{"a": 1}, {"a": 1}], "b": {"a": 1}})", "c.json", {},
                      DuplicateKeys::kRefuse);
}

TEST(JsonObject, IntegersAreExact) {
  const auto document = parse(R"({"i": 7, "f": 7.0, "b": true, "s": "7", "n": null, "neg": -3,
                                  "big": 9223372036854775808, "bigger": 18446744073709551616})");
  const JsonObject json = document.root();
  EXPECT_EQ(json.require_int("i", {7, 7}), 7);
  EXPECT_EQ(json.require_int("neg"), -3);
  EXPECT_ERROR(json.require_int("i", {1, 6}),
               "c.json: key \"i\" is 7, expected an integer from 1 to 6");
  EXPECT_ERROR(json.require_int("neg", {.min = 0}), "is -3, expected an integer of at least 0");
  EXPECT_ERROR(json.require_int("f"), "key \"f\" is 7.0, expected an integer");
  EXPECT_ERROR(json.require_int("b"), "is true, expected an integer");
  EXPECT_ERROR(json.require_int("s"), "is \"7\", expected an integer");
  EXPECT_ERROR(json.require_int("big"), "is 9223372036854775808, expected");
  EXPECT_ERROR(json.require_int("bigger"), "expected an integer");
  EXPECT_ERROR(json.require_int("none"), "key \"none\" is missing, expected");
  EXPECT_EQ(json.find_int("none"), std::nullopt);
  EXPECT_EQ(json.find_int("n"), std::nullopt);
  EXPECT_EQ(json.int_or("none", 5), 5);
  EXPECT_ERROR(json.int_or("n", 5), "is null, expected an integer");
}

TEST(JsonObject, NumbersStringsAndLists) {
  const auto document =
      parse(R"({"f": 1.5, "i": 2, "l": [1, 2], "m": [1, "x"], "o": {"p": {"q": "text"}}, "t": true,
                                  "s": ["a"], "big": 1e300})");
  const JsonObject json = document.root();
  EXPECT_EQ(json.require_number("f"), 1.5);
  EXPECT_EQ(json.require_number("i"), 2.0);
  EXPECT_ERROR(json.require_number("big", {0, 1}), "is 1e+300, expected a number from 0 to 1");
  EXPECT_ERROR(json.require_number("l"), "is a list of 2, expected a number");
  EXPECT_EQ(json.find_ints("l"), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(json.find_ints("i"), (std::vector<std::int64_t>{2}));
  EXPECT_ERROR(json.find_ints("m"), "or a list of them (one element is \"x\")");
  EXPECT_EQ(json.find_strings("s"), (std::vector<std::string>{"a"}));
  EXPECT_ERROR(json.find_strings("m"), "expected a list of strings (one element is 1)");
  EXPECT_EQ(json.find_bool("t"), true);
  EXPECT_ERROR(json.find_bool("i"), "is 2, expected true or false");
  const JsonObject inner = json.require_object("o").require_object("p");
  EXPECT_EQ(inner.require_string("q"), "text");
  EXPECT_ERROR(inner.require_int("q"), "key \"o.p.q\" is \"text\", expected an integer");
  EXPECT_ERROR(json.require_object("l"), "is a list of 2, expected an object");
  EXPECT_ERROR(json.require_string("o"), "is an object, expected a string");
}

TEST(InQuotes, KeepsTextShortAndOnOneLine) {
  EXPECT_EQ(in_quotes("plain"), "\"plain\"");
  EXPECT_EQ(in_quotes("a\nb\x7f"), "\"a\\x0ab\\x7f\"");
  EXPECT_EQ(in_quotes("abcdef", 3), "\"abc\"... (6 bytes)");
  EXPECT_EQ(in_quotes("ab\xc3\xa9x", 3), "\"ab\xc3\xa9\"... (5 bytes)");  // no character is cut
}

}  // namespace
}  // namespace dendrite
