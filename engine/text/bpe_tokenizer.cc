// SPDX-License-Identifier: Apache-2.0

#include "engine/text/bpe_tokenizer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/text/nfc.h"
#include "engine/text/pretokenizer.h"
#include "engine/text/utf8.h"
#include "engine/tokenizer.h"
#include "engine/types.h"

namespace deltaedge {
namespace {

// Composing can make a text three times as long, and places in it are int32_t.
constexpr size_t kMaxTextBytes = size_t{1} << 28;
constexpr int32_t kNone = -1;

uint64_t PairKey(TokenId left, TokenId right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 |
         static_cast<uint32_t>(right);
}

// Finds added tokens in a text, the longest at the leftmost place first.
class AddedTokenFinder {
 public:
  struct Token {
    std::string text;
    TokenId id;
    bool special;
  };

  void Add(Token token) {
    by_first_byte_[static_cast<unsigned char>(token.text[0])].push_back(
        std::move(token));
  }

  void Finish() {
    for (std::vector<Token>& tokens : by_first_byte_) {
      std::stable_sort(tokens.begin(), tokens.end(),
                       [](const Token& a, const Token& b) {
                         return a.text.size() > b.text.size();
                       });
    }
  }

  // Null if no token begins `text`.
  const Token* At(absl::string_view text) const {
    for (const Token& token :
         by_first_byte_[static_cast<unsigned char>(text[0])]) {
      if (text.substr(0, token.text.size()) == token.text) return &token;
    }
    return nullptr;
  }

 private:
  std::array<std::vector<Token>, 256> by_first_byte_;
};

// Calls on_text for what lies between tokens and on_token for tokens, in order.
// Special tokens that are to be read as text are text, and nothing inside them
// is looked for.
template <typename OnText, typename OnToken>
absl::Status CutAtTokens(const AddedTokenFinder& finder, absl::string_view text,
                         Tokenizer::Special special, OnText on_text,
                         OnToken on_token) {
  size_t done = 0;
  for (size_t i = 0; i < text.size();) {
    const AddedTokenFinder::Token* token = finder.At(text.substr(i));
    if (token == nullptr) {
      ++i;
      continue;
    }
    const size_t end = i + token->text.size();
    if (!token->special || special == Tokenizer::Special::kAsToken) {
      if (i > done) {
        DELTAEDGE_RETURN_IF_ERROR(on_text(text.substr(done, i - done)));
      }
      on_token(token->id);
      done = end;
    }
    i = end;
  }
  if (done == text.size()) return absl::OkStatus();
  return on_text(text.substr(done));
}

class BpeTokenizer final : public Tokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Make(
      TokenizerTables tables);

  absl::StatusOr<std::vector<TokenId>> Encode(absl::string_view text,
                                              Special special) const override;
  absl::StatusOr<absl::string_view> Bytes(TokenId id) const override;
  bool IsSpecial(TokenId id) const override {
    return id >= 0 && static_cast<size_t>(id) < is_special_.size() &&
           is_special_[id];
  }
  int32_t vocab_size() const override { return vocab_size_; }

 private:
  struct Merged {
    int32_t rank;
    TokenId result;
  };
  // A doubly linked list of the tokens of a piece, by index. `rank` is that of
  // the merge with the right neighbour, kNone if there is none.
  struct Symbol {
    TokenId id;
    int32_t left, right;
    int32_t rank;
    TokenId result;
  };
  // Kept between the pieces of one text.
  struct Scratch {
    std::vector<Symbol> symbols;
    std::vector<uint64_t> queue;  // rank << 32 | index, a min-heap.
  };

  explicit BpeTokenizer(Pretokenizer pretokenizer)
      : pretokenizer_(std::move(pretokenizer)) {}

  absl::Status AddTokens(const std::vector<AddedToken>& added);
  absl::Status AddBytes();
  absl::Status AddMerges(const std::vector<TokenizerTables::Merge>& merges);

  absl::Status EncodeText(absl::string_view text, Scratch* scratch,
                          std::vector<TokenId>* ids) const;
  void EncodePiece(absl::string_view piece, Scratch* scratch,
                   std::vector<TokenId>* ids) const;
  void FindMerge(Symbol* symbol, const std::vector<Symbol>& symbols) const;

  bool in_table(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < token_bytes_.size();
  }

  Pretokenizer pretokenizer_;
  std::vector<std::string> token_bytes_;
  std::vector<bool> is_added_, is_special_;
  bool nfc_ = false;
  int32_t vocab_size_ = 0;
  AddedTokenFinder raw_, normalized_;
  bool any_normalized_ = false;
  std::array<TokenId, 256> byte_id_;
  absl::flat_hash_map<uint64_t, Merged> merges_;
  // Filled only if pieces that are tokens stay whole.
  absl::flat_hash_map<absl::string_view, TokenId> whole_;
};

absl::StatusOr<std::unique_ptr<Tokenizer>> BpeTokenizer::Make(
    TokenizerTables tables) {
  if (tables.vocab_size < 1 ||
      tables.token_bytes.size() > static_cast<size_t>(tables.vocab_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer: vocab_size is ", tables.vocab_size, ", with ",
                     tables.token_bytes.size(),
                     " tokens; it must be at least "
                     "that many and at least 1"));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(Pretokenizer pretokenizer,
                             Pretokenizer::Make(tables.pretokenizer));
  std::unique_ptr<BpeTokenizer> t(new BpeTokenizer(std::move(pretokenizer)));
  t->token_bytes_ = std::move(tables.token_bytes);
  t->nfc_ = tables.nfc;
  t->vocab_size_ = tables.vocab_size;
  DELTAEDGE_RETURN_IF_ERROR(t->AddTokens(tables.added));
  DELTAEDGE_RETURN_IF_ERROR(t->AddBytes());
  DELTAEDGE_RETURN_IF_ERROR(t->AddMerges(tables.merges));
  if (tables.ignore_merges) {
    for (size_t id = 0; id < t->token_bytes_.size(); ++id) {
      const std::string& bytes = t->token_bytes_[id];
      if (!bytes.empty() && !t->is_added_[id]) {
        t->whole_.try_emplace(bytes, static_cast<TokenId>(id));
      }
    }
  }
  return t;
}

absl::Status BpeTokenizer::AddTokens(const std::vector<AddedToken>& added) {
  is_added_.resize(token_bytes_.size());
  is_special_.resize(token_bytes_.size());
  for (size_t i = 0; i < added.size(); ++i) {
    const AddedToken& token = added[i];
    const std::string name =
        absl::StrCat("tokenizer: added token ", i, " (id ", token.id, ")");
    if (!in_table(token.id)) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is not among the ",
                                                     token_bytes_.size(),
                                                     " tokens of the table"));
    }
    if (token.text.empty() || token.text != token_bytes_[token.id]) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, " is empty or spelt otherwise in the table of tokens"));
    }
    DELTAEDGE_RETURN_IF_ERROR(CheckUtf8(token.text, name));
    if (token.lstrip || token.rstrip || token.single_word) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " sets ",
                       token.lstrip   ? "lstrip"
                       : token.rstrip ? "rstrip"
                                      : "single_word",
                       ", which is not supported"));
    }
    if (is_added_[token.id]) {
      return absl::InvalidArgumentError(absl::StrCat(name, " comes twice"));
    }
    is_added_[token.id] = true;
    is_special_[token.id] = token.special;
    if (!token.normalized) {
      raw_.Add({token.text, token.id, token.special});
      continue;
    }
    any_normalized_ = true;
    std::string text = token.text;
    if (nfc_) {
      DELTAEDGE_ASSIGN_OR_RETURN(text, Nfc(text));
    }
    normalized_.Add({std::move(text), token.id, token.special});
  }
  raw_.Finish();
  normalized_.Finish();
  return absl::OkStatus();
}

absl::Status BpeTokenizer::AddBytes() {
  byte_id_.fill(kNone);
  for (size_t id = 0; id < token_bytes_.size(); ++id) {
    if (token_bytes_[id].size() != 1 || is_added_[id]) continue;
    TokenId& slot = byte_id_[static_cast<unsigned char>(token_bytes_[id][0])];
    if (slot == kNone) slot = static_cast<TokenId>(id);
  }
  for (size_t byte = 0; byte < byte_id_.size(); ++byte) {
    if (byte_id_[byte] == kNone) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer: byte 0x", absl::Hex(byte, absl::kZeroPad2),
                       " has no token; a byte-level vocabulary holds all 256"));
    }
  }
  return absl::OkStatus();
}

absl::Status BpeTokenizer::AddMerges(
    const std::vector<TokenizerTables::Merge>& merges) {
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const TokenizerTables::Merge& merge = merges[rank];
    if (!in_table(merge.left) || !in_table(merge.right) ||
        !in_table(merge.result)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer: merge ", rank, " (", merge.left, " ",
                       merge.right, " -> ", merge.result, ") is not among the ",
                       token_bytes_.size(), " tokens of the table"));
    }
    const absl::string_view left = token_bytes_[merge.left],
                            right = token_bytes_[merge.right],
                            result = token_bytes_[merge.result];
    if (left.empty() || right.empty() ||
        result.size() != left.size() + right.size() ||
        result.substr(0, left.size()) != left ||
        result.substr(left.size()) != right) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tokenizer: merge ", rank, ": token ", merge.result, " is not token ",
          merge.left, " followed by token ", merge.right));
    }
    merges_.insert_or_assign(PairKey(merge.left, merge.right),
                             Merged{static_cast<int32_t>(rank), merge.result});
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::string_view> BpeTokenizer::Bytes(TokenId id) const {
  if (id < 0 || id >= vocab_size_) {
    return absl::OutOfRangeError(absl::StrCat(
        "token id ", id, " is outside the vocabulary of ", vocab_size_));
  }
  if (!in_table(id)) return absl::string_view();
  return absl::string_view(token_bytes_[id]);
}

absl::StatusOr<std::vector<TokenId>> BpeTokenizer::Encode(
    absl::string_view text, Special special) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("text has ", text.size(), " bytes; at most ",
                     kMaxTextBytes, " are allowed"));
  }
  DELTAEDGE_RETURN_IF_ERROR(CheckUtf8(text, "text"));

  std::vector<TokenId> ids;
  Scratch scratch;
  const auto on_token = [&ids](TokenId id) { ids.push_back(id); };
  const auto on_text = [&](absl::string_view run) -> absl::Status {
    std::string composed;
    if (nfc_) {
      DELTAEDGE_ASSIGN_OR_RETURN(composed, Nfc(run));
      run = composed;
    }
    if (!any_normalized_) return EncodeText(run, &scratch, &ids);
    return CutAtTokens(
        normalized_, run, special,
        [&](absl::string_view part) {
          return EncodeText(part, &scratch, &ids);
        },
        on_token);
  };
  DELTAEDGE_RETURN_IF_ERROR(
      CutAtTokens(raw_, text, special, on_text, on_token));
  return ids;
}

absl::Status BpeTokenizer::EncodeText(absl::string_view text, Scratch* scratch,
                                      std::vector<TokenId>* ids) const {
  DELTAEDGE_ASSIGN_OR_RETURN(const std::vector<absl::string_view> pieces,
                             pretokenizer_.Split(text));
  for (absl::string_view piece : pieces) EncodePiece(piece, scratch, ids);
  return absl::OkStatus();
}

void BpeTokenizer::FindMerge(Symbol* symbol,
                             const std::vector<Symbol>& symbols) const {
  symbol->rank = kNone;
  if (symbol->right == kNone) return;
  const auto found =
      merges_.find(PairKey(symbol->id, symbols[symbol->right].id));
  if (found == merges_.end()) return;
  symbol->rank = found->second.rank;
  symbol->result = found->second.result;
}

void BpeTokenizer::EncodePiece(absl::string_view piece, Scratch* scratch,
                               std::vector<TokenId>* ids) const {
  if (const auto found = whole_.find(piece); found != whole_.end()) {
    ids->push_back(found->second);
    return;
  }

  std::vector<Symbol>& symbols = scratch->symbols;
  std::vector<uint64_t>& queue = scratch->queue;
  const int32_t n = static_cast<int32_t>(piece.size());
  symbols.resize(n);
  queue.clear();
  for (int32_t i = 0; i < n; ++i) {
    symbols[i] = {byte_id_[static_cast<unsigned char>(piece[i])], i - 1,
                  i + 1 < n ? i + 1 : kNone, kNone, kNone};
  }
  const auto enqueue = [&](int32_t i) {
    FindMerge(&symbols[i], symbols);
    if (symbols[i].rank == kNone) return false;
    queue.push_back(PairKey(symbols[i].rank, i));
    return true;
  };
  for (int32_t i = 0; i < n; ++i) enqueue(i);
  std::make_heap(queue.begin(), queue.end(), std::greater<>());

  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const int32_t i = static_cast<int32_t>(queue.back() & UINT32_MAX);
    const int32_t rank = static_cast<int32_t>(queue.back() >> 32);
    queue.pop_back();
    // An entry is out of date once its symbol or its neighbour was merged.
    if (symbols[i].rank != rank) continue;

    const int32_t gone = symbols[i].right;
    symbols[i].id = symbols[i].result;
    symbols[i].right = symbols[gone].right;
    symbols[gone].rank = kNone;
    if (symbols[i].right != kNone) symbols[symbols[i].right].left = i;
    if (enqueue(i)) {
      std::push_heap(queue.begin(), queue.end(), std::greater<>());
    }
    if (symbols[i].left != kNone && enqueue(symbols[i].left)) {
      std::push_heap(queue.begin(), queue.end(), std::greater<>());
    }
  }

  for (int32_t i = n == 0 ? kNone : 0; i != kNone; i = symbols[i].right) {
    ids->push_back(symbols[i].id);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeBpeTokenizer(
    TokenizerTables tables) {
  return BpeTokenizer::Make(std::move(tables));
}

}  // namespace deltaedge
