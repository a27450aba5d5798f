// SPDX-License-Identifier: Apache-2.0

#include "engine/text/stop_text.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"

namespace deltaedge {

StopTextMatcher::StopTextMatcher(absl::Span<const std::string> texts) {
  for (const std::string& bytes : texts) {
    assert(!bytes.empty());
    Text text;
    text.bytes = bytes;
    text.border.push_back(0);
    for (size_t i = 1; i < bytes.size(); ++i) {
      text.border.push_back(Advance(text, text.border.back(), bytes[i]));
    }
    texts_.push_back(std::move(text));
  }
}

StopTextMatcher::Result StopTextMatcher::Push(absl::string_view piece) {
  if (texts_.empty()) return {piece, false};
  if (stopped_) return {{}, true};
  // A view into the bytes of a text, which stay.
  const absl::string_view before = Held();
  size_t match = 0;
  size_t read = 0;
  while (match == 0 && read < piece.size()) {
    const char byte = piece[read++];
    for (Text& text : texts_) {
      text.matched = Advance(text, text.matched, byte);
      if (text.matched == text.bytes.size()) {
        match = std::max(match, text.matched);
      }
    }
  }
  if (match > 0) {
    stopped_ = true;
    Forget();
  }
  const size_t held = match > 0 ? match : Held().size();
  const size_t count = before.size() + read - held;
  if (before.empty()) return {piece.substr(0, count), stopped_};
  const size_t old = std::min(count, before.size());
  released_.assign(before.data(), old);
  absl::StrAppend(&released_, piece.substr(0, count - old));
  return {released_, stopped_};
}

std::string StopTextMatcher::Flush() {
  std::string held(Held());
  stopped_ = false;
  Forget();
  return held;
}

size_t StopTextMatcher::Advance(const Text& text, size_t matched, char byte) {
  while (matched > 0 && text.bytes[matched] != byte) {
    matched = text.border[matched - 1];
  }
  return text.bytes[matched] == byte ? matched + 1 : 0;
}

absl::string_view StopTextMatcher::Held() const {
  absl::string_view held;
  for (const Text& text : texts_) {
    if (text.matched > held.size()) {
      held = absl::string_view(text.bytes).substr(0, text.matched);
    }
  }
  return held;
}

void StopTextMatcher::Forget() {
  for (Text& text : texts_) text.matched = 0;
}

}  // namespace deltaedge
