// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_TEXT_STOP_TEXT_H_
#define DELTAEDGE_ENGINE_TEXT_STOP_TEXT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace deltaedge {

// Looks for stop texts in a stream that comes in pieces, and holds back what
// may still become one. What is found and what is released by the end of any
// piece depends on the bytes of the stream alone, not on how it is cut.
//
//   StopTextMatcher matcher(options.stop_texts);
//   for (...) {
//     const auto [text, stopped] = matcher.Push(piece);
//     Deliver(text);
//     if (stopped) return;
//   }
//   Deliver(matcher.Flush());
//
// Of several texts the first to be complete counts, the longest of those that
// the same byte completes. If pieces and texts are whole UTF-8, so is whatever
// comes out.
//
// Takes time linear in the stream for each text (Knuth, Morris, Pratt: "Fast
// pattern matching in strings", 1977). A value: a copy goes on by itself.
// Thread-compatible.
class StopTextMatcher {
 public:
  // What Push() releases. `text` lies in the piece or in the matcher: valid as
  // long as the piece is and until the next call.
  struct Result {
    absl::string_view text;
    bool stopped = false;
  };

  // No texts: every piece passes, without a copy.
  StopTextMatcher() = default;
  // `texts` must not be empty ones.
  explicit StopTextMatcher(absl::Span<const std::string> texts);

  // Goes on with `piece`. Releases the stream up to the longest end of it that
  // begins one of the texts; at a match, up to the match, and `stopped`. After
  // that nothing is released any more: pieces are ignored and `stopped` stays.
  Result Push(absl::string_view piece);

  // The stream ends: what is held back, always shorter than the longest text,
  // and nothing after a match. The next piece begins a new stream.
  std::string Flush();

 private:
  struct Text {
    std::string bytes;
    // [i]: length of the longest border of the first i + 1 bytes: of what both
    // begins and ends them, not being all of them.
    std::vector<size_t> border;
    // Length of the longest beginning of `bytes` that the stream ends with.
    size_t matched = 0;
  };

  static size_t Advance(const Text& text, size_t matched, char byte);
  absl::string_view Held() const;
  void Forget();

  std::vector<Text> texts_;
  bool stopped_ = false;
  std::string released_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_TEXT_STOP_TEXT_H_
