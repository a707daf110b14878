#include "chat/named_reader.h"

#include "chat/blank.h"

namespace dendrite::chats {
namespace {

constexpr std::string_view kArguments = "[ARGS]";
constexpr std::string_view kId = "[CALL_ID]";

}  // namespace

CallNow NamedReader::put(char c) {
  if (place_ == Place::kJson) return put_json(c);
  if (!partial_.empty() || (c == '[' && place_ != Place::kBehindMark)) return put_mark(c);
  if (place_ == Place::kId) return is_blank(c) ? CallNow::kNoCall : CallNow::kMore;
  if (c == '{' && tools_->knows(name_)) {
    place_ = Place::kJson;
    return put_json(c);
  }
  if (place_ == Place::kBehindMark) return is_blank(c) ? CallNow::kMore : CallNow::kNoCall;
  name_ += c;
  if (tools_->may_become(name_)) return CallNow::kMore;
  name_.pop_back();
  return CallNow::kNoCall;
}

CallNow NamedReader::put_mark(char c) {
  partial_ += c;
  const bool may_be_id = place_ == Place::kName && kId.starts_with(partial_);
  if (!tools_->knows(name_) || !(may_be_id || kArguments.starts_with(partial_))) {
    partial_.pop_back();
    return CallNow::kNoCall;
  }
  if (partial_ == kId) place_ = Place::kId;
  if (partial_ == kArguments) place_ = Place::kBehindMark;
  if (partial_ == kId || partial_ == kArguments) partial_.clear();
  return CallNow::kMore;
}

CallNow NamedReader::put_json(char c) {
  const bool in_string = json_.in_string();
  const JsonScanner::Now now = json_.put(c);
  if (now == JsonScanner::Now::kBroken) return CallNow::kBroken;
  add_json(arguments_, c, in_string);
  return now == JsonScanner::Now::kEnded ? CallNow::kCallEnded : CallNow::kMore;
}

}  // namespace dendrite::chats
