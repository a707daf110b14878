#include "chat/call_reader.h"

namespace dendrite::chats {

CallReader::Now CallReader::put(char c) {
  using Place = JsonScanner::Place;
  const Place place = scanner_.place();
  const std::size_t depth = scanner_.depth();
  const bool in_string = scanner_.in_string();
  if (scanner_.put(c) == JsonScanner::Now::kBroken) return Now::kBroken;
  if (inside_ == 0) inside_ = c == '{' ? 1 : 2;
  const std::size_t now = scanner_.depth();

  if (depth + 1 == inside_ && now == inside_ && c == '{') {  // an object begins
    key_ = Key::kOther;
    in_value_ = knows_name_ = has_arguments_ = false;
    is_clear_ = true;
    arguments_.clear();
    return Now::kMore;
  }
  if (depth < inside_) {  // in the array: blanks, commas, its end; another value is no call
    const bool opens = place == Place::kValue || place == Place::kFirstValue;
    const bool is_value = depth > 0 && opens && now == depth && scanner_.place() != place;
    return is_value || (depth > 0 && now > depth) ? Now::kNoCall : Now::kMore;
  }
  if (depth == inside_ && now < inside_) {
    const bool is_call = has_begun();
    knows_name_ = has_arguments_ = false;
    return is_call ? Now::kCallEnded : Now::kNoCall;
  }

  if (depth == inside_ && !in_value_) {
    if ((place == Place::kKey || place == Place::kFirstKey) && c == '"') {
      word_.clear();
      word_.push_back('"');
    } else if (in_string) {
      add_json(word_, c, true);
      if (!scanner_.in_string() && !key_ended()) return Now::kNoCall;
    } else if (place == Place::kValue && scanner_.place() != place) {
      return value_begins(c) ? Now::kMore : Now::kNoCall;
    }
    return Now::kMore;
  }
  if (!in_value_) return Now::kMore;
  if (key_ == Key::kName) add_json(word_, c, in_string);
  if (key_ == Key::kArguments) add_json(arguments_, c, in_string);
  const Place after = scanner_.place();
  if (now == inside_ && (after == Place::kBehindValue || after == Place::kKey)) {
    in_value_ = false;
    if (key_ == Key::kName && !name_ended()) return Now::kNoCall;
    key_ = Key::kOther;
  }
  return Now::kMore;
}

/// False: it can be no call.
bool CallReader::key_ended() {
  const Json key = Json::parse(word_, nullptr, false);
  key_ = key == "name"                               ? Key::kName
         : key == "arguments" || key == "parameters" ? Key::kArguments
                                                     : Key::kOther;
  if (key_ == Key::kOther) return true;
  const bool again = key_ == Key::kName ? knows_name_ : has_arguments_;
  if (!again) return true;
  if (!has_begun()) return false;
  is_clear_ = false;  // it has been told
  key_ = Key::kOther;
  return true;
}

bool CallReader::value_begins(char c) {
  in_value_ = true;
  switch (key_) {
    case Key::kName:
      word_.clear();
      word_.push_back('"');
      return c == '"';
    case Key::kArguments:
      has_arguments_ = true;
      arguments_.clear();
      arguments_.push_back('{');
      return c == '{';
    case Key::kOther:
      return true;
  }
  return true;
}

bool CallReader::name_ended() {
  const Json name = Json::parse(word_, nullptr, false);
  if (!name.is_string() || !tools_->knows(name.get_ref<const std::string&>())) return false;
  name_ = name.get<std::string>();
  knows_name_ = true;
  return true;
}

}  // namespace dendrite::chats
