// SPDX-License-Identifier: Apache-2.0

#include "engine/tokenizer.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/text/utf8.h"
#include "engine/types.h"

namespace deltaedge {

StreamDecoder::StreamDecoder(const Tokenizer* tokenizer,
                             SpecialTokens special_tokens)
    : tokenizer_(tokenizer), special_tokens_(special_tokens) {
  // Few tokens have more bytes.
  constexpr size_t kBytes = 64;
  pending_.reserve(kBytes);
  ready_.reserve(kBytes);
}

absl::StatusOr<absl::string_view> StreamDecoder::Push(TokenId id) {
  absl::StatusOr<absl::string_view> bytes = tokenizer_->Bytes(id);
  if (!bytes.ok()) return bytes.status();
  ready_.clear();
  if (special_tokens_ == SpecialTokens::kSkip && tokenizer_->IsSpecial(id)) {
    return absl::string_view(ready_);
  }

  absl::StrAppend(&pending_, *bytes);
  absl::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Step step = NextUtf8(rest);
    if (step.kind == Utf8Step::Kind::kCut) break;
    absl::StrAppend(&ready_, step.kind == Utf8Step::Kind::kCharacter
                                 ? rest.substr(0, step.bytes)
                                 : kReplacementCharacter);
    rest.remove_prefix(step.bytes);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return absl::string_view(ready_);
}

std::string StreamDecoder::Flush() {
  std::string tail(pending_.empty() ? absl::string_view()
                                    : kReplacementCharacter);
  pending_.clear();
  ready_.clear();
  return tail;
}

}  // namespace deltaedge
