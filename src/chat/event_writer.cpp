#include "chat/event_writer.h"

#include <cstdint>
#include <random>

namespace dendrite::chats {
namespace {

std::string new_id() {
  constexpr char kHex[] = "0123456789abcdef";
  std::random_device device;
  std::string id = "call_";
  for (int i = 0; i < 3; ++i) {
    for (auto bits = static_cast<std::uint32_t>(device()), n = 8u; n > 0; --n, bits >>= 4) {
      id += kHex[bits & 15];
    }
  }
  return id;
}

}  // namespace

ReplyEvent& EventWriter::last(ReplyEvent::Kind kind) {
  if (events_.empty() || events_.back().kind != kind) events_.push_back({.kind = kind});
  return events_.back();
}

void EventWriter::say(ReplyEvent::Kind kind, std::string_view text) {
  if (!text.empty()) last(kind).text += text;
}

void EventWriter::begin_call(const std::string& name) {
  in_call_ = true;
  events_.push_back(
      {.kind = ReplyEvent::Kind::kCallBegin, .call = calls_++, .id = new_id(), .name = name});
}

void EventWriter::add_arguments(std::string_view text) {
  if (text.empty()) return;
  ReplyEvent& event = last(ReplyEvent::Kind::kCallArguments);
  event.call = calls_ - 1;
  event.text += text;
}

void EventWriter::end_call(bool complete) {
  in_call_ = false;
  events_.push_back({.kind = ReplyEvent::Kind::kCallEnd, .call = calls_ - 1, .complete = complete});
}

}  // namespace dendrite::chats
