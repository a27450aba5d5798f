// SPDX-License-Identifier: Apache-2.0

#include "tools/golden_check/conversation_golden.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/chat_format.h"
#include "engine/chat_message.h"
#include "engine/model/chat_table.h"
#include "engine/spec/block_drafter.h"
#include "engine/spec/dflash_drafter.h"
#include "engine/spec/stepper.h"
#include "engine/text/bpe_tokenizer.h"
#include "engine/tokenizer.h"
#include "engine/types.h"
#include "tools/golden_check/draft_runner.h"
#include "tools/golden_check/golden_json.h"
#include "tools/golden_check/golden_tensors.h"
#include "tools/golden_check/target_runner.h"

namespace deltaedge {

namespace {

using nlohmann::json;

constexpr double kTie = 1e-3;
constexpr int64_t kChunkRows = 256;

struct Turn {
  std::vector<ChatMessage> messages;  // Up to the question.
  Thinking thinking = Thinking::kUnset;
  std::vector<TokenId> prompt, answer;
  std::string text;
  std::vector<int64_t> accepted;
  // Unset: the golden does not say, so no tie is excused.
  std::optional<double> margin, draft_margin;
};

absl::StatusOr<std::vector<Turn>> ReadTurns(const json& conversation,
                                            int32_t vocab_size) {
  DELTAEDGE_ASSIGN_OR_RETURN(const json* messages,
                             JsonArray(conversation, "messages"));
  DELTAEDGE_ASSIGN_OR_RETURN(const json* turns,
                             JsonArray(conversation, "turns"));
  std::vector<ChatMessage> all;
  std::vector<size_t> questions;  // Where each user message ends.
  for (const json& message : *messages) {
    DELTAEDGE_ASSIGN_OR_RETURN(ChatMessage read, JsonMessage(message));
    all.push_back(std::move(read));
    if (all.back().role == Role::kUser) questions.push_back(all.size());
  }
  if (questions.size() != turns->size() || turns->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(turns->size(), " turns for ",
                                                   questions.size(),
                                                   " messages of the user"));
  }
  std::vector<Turn> result;
  for (size_t i = 0; i < turns->size(); ++i) {
    const json& from = (*turns)[i];
    Turn turn;
    turn.messages.assign(all.begin(), all.begin() + questions[i]);
    const auto thinking = conversation.find("enable_thinking");
    if (i + 1 == turns->size() && thinking != conversation.end() &&
        thinking->is_boolean()) {
      turn.thinking = thinking->get<bool>() ? Thinking::kOn : Thinking::kOff;
    }
    DELTAEDGE_ASSIGN_OR_RETURN(std::vector<int64_t> ids,
                               JsonInts(from, "prompt_ids"));
    DELTAEDGE_ASSIGN_OR_RETURN(turn.prompt, ToTokens(ids, vocab_size));
    DELTAEDGE_ASSIGN_OR_RETURN(ids, JsonInts(from, "answer_ids"));
    DELTAEDGE_ASSIGN_OR_RETURN(turn.answer, ToTokens(ids, vocab_size));
    DELTAEDGE_ASSIGN_OR_RETURN(turn.text, JsonText(from, "answer"));
    DELTAEDGE_ASSIGN_OR_RETURN(turn.accepted, JsonInts(from, "accepted"));
    if (turn.prompt.empty() || turn.answer.empty() || turn.accepted.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("turn ", i, " has an empty list"));
    }
    turn.margin = JsonOptionalNumber(from, "margin");
    turn.draft_margin = JsonOptionalNumber(from, "draft_margin");
    result.push_back(std::move(turn));
  }
  return result;
}

// What decoding gave, cut at nothing.
struct Decoded {
  std::vector<TokenId> tokens;
  std::vector<int64_t> emitted;  // By each step, the first one apart.
};

class Conversations {
 public:
  Conversations(const ModelPair& pair, Report* report)
      : pair_(pair), report_(*report) {}

  absl::Status Init(int64_t longest_prompt, pthreadpool_t pool) {
    const int64_t rows = std::min(longest_prompt, kChunkRows);
    if (pair_.draft() != nullptr) {
      DELTAEDGE_ASSIGN_OR_RETURN(
          drafting_,
          DraftRunner::Create(pair_, WindowMode::kAsConfigured, rows, pool));
    } else {
      DELTAEDGE_ASSIGN_OR_RETURN(
          plain_, TargetRunner::Create(pair_.target(), {}, rows, pool));
    }
    if (!pair_.target().tokenizer().has_value()) return absl::OkStatus();
    DELTAEDGE_ASSIGN_OR_RETURN(tokenizer_,
                               MakeBpeTokenizer(*pair_.target().tokenizer()));
    if (!pair_.target().chat().has_value()) return absl::OkStatus();
    DELTAEDGE_ASSIGN_OR_RETURN(
        chat_, ChatFormat::Make(
                   tokenizer_.get(),
                   std::make_unique<const ChatTable>(*pair_.target().chat())));
    return absl::OkStatus();
  }

  void Check(const Turn& turn, const std::string& name) {
    CheckPrompt(turn, name);
    const absl::StatusOr<Decoded> decoded = Decode(turn);
    if (!decoded.ok()) return report_.Fail(name, decoded.status());
    const bool same = CheckAnswer(turn, name, *decoded);
    if (pair_.draft() != nullptr && same) {
      CheckAccepted(turn, name, *decoded);
    }
    const absl::Status status = CheckText(turn, name);
    if (!status.ok()) report_.Fail(absl::StrCat(name, ".text"), status);
  }

  // Over all turns, for people.
  void Summarise() {
    if (pair_.draft() == nullptr) {
      return report_.NotRun("accepted", "needs --draft");
    }
    if (steps_ == 0) return;
    report_.Note(absl::StrFormat(
        "%d tokens in %d steps with drafts, %.2f a step", tokens_, steps_,
        static_cast<double>(tokens_) / static_cast<double>(steps_)));
  }

 private:
  void CheckPrompt(const Turn& turn, const std::string& turn_name) {
    const std::string name = absl::StrCat(turn_name, ".prompt_ids");
    if (chat_ == nullptr) {
      return report_.Fail(name, "the model has no chat format");
    }
    RenderOptions options;
    options.thinking = turn.thinking;
    const auto ids = chat_->Render(turn.messages, options);
    if (!ids.ok()) return report_.Fail(name, ids.status());
    report_.Equal(name, std::vector<int64_t>(ids->begin(), ids->end()),
                  std::vector<int64_t>(turn.prompt.begin(), turn.prompt.end()));
  }

  absl::StatusOr<Decoded> Decode(const Turn& turn) {
    TargetRunner& target = drafting_ != nullptr ? drafting_->target() : *plain_;
    const int32_t drafts =
        drafting_ != nullptr ? drafting_->config().block_size - 1 : 0;
    const int64_t capacity =
        static_cast<int64_t>(turn.prompt.size() + turn.answer.size()) +
        2 * kMaxBlockRows;
    DELTAEDGE_ASSIGN_OR_RETURN(TargetSequence sequence,
                               target.NewSequence(capacity));
    NullDrafter none;
    std::unique_ptr<DFlashDrafter> dflash;
    BlockDrafter* drafter = &none;
    if (drafting_ != nullptr) {
      DELTAEDGE_ASSIGN_OR_RETURN(
          dflash, DFlashDrafter::Create(&drafting_->draft(), capacity));
      drafter = dflash.get();
    }

    std::vector<TokenId> tokens = turn.prompt;
    const absl::Span<const TokenId> covered =
        absl::MakeConstSpan(turn.prompt).first(turn.prompt.size() - 1);
    for (size_t i = 0; i < covered.size(); i += kChunkRows) {
      DELTAEDGE_RETURN_IF_ERROR(target.Prefill(
          covered.subspan(
              i, std::min<size_t>(kChunkRows, target.stepper().max_chunk())),
          &sequence, drafter));
    }
    Decoded decoded;
    StepResult result;
    while (decoded.tokens.size() < turn.answer.size()) {
      DELTAEDGE_RETURN_IF_ERROR(target.Step(tokens,
                                            decoded.tokens.empty() ? 0 : drafts,
                                            &sequence, drafter, &result));
      const int32_t count = static_cast<int32_t>(result.tokens.size());
      DELTAEDGE_RETURN_IF_ERROR(sequence.cursor.Keep(count));
      if (!decoded.tokens.empty()) decoded.emitted.push_back(count);
      for (std::vector<TokenId>* to : {&tokens, &decoded.tokens}) {
        to->insert(to->end(), result.tokens.begin(), result.tokens.end());
      }
    }
    steps_ += static_cast<int64_t>(decoded.emitted.size());
    tokens_ += absl::c_accumulate(decoded.emitted, int64_t{0});
    return decoded;
  }

  // Whether the answer is the golden's.
  bool CheckAnswer(const Turn& turn, const std::string& turn_name,
                   const Decoded& decoded) {
    const std::string name = absl::StrCat(turn_name, ".answer_ids");
    const std::vector<int64_t> golden(turn.answer.begin(), turn.answer.end());
    const std::vector<int64_t> ours(decoded.tokens.begin(),
                                    decoded.tokens.begin() + golden.size());
    return Compare(name, ours, golden, {turn.margin});
  }

  void CheckAccepted(const Turn& turn, const std::string& turn_name,
                     const Decoded& decoded) {
    Compare(absl::StrCat(turn_name, ".accepted"), decoded.emitted,
            turn.accepted, {turn.margin, turn.draft_margin});
  }

  // Equal, or different first where one of `margins` is a tie. Returns whether
  // equal.
  bool Compare(const std::string& name, const std::vector<int64_t>& ours,
               const std::vector<int64_t>& golden,
               std::initializer_list<std::optional<double>> margins) {
    if (ours == golden) return report_.Equal(name, ours, golden);
    const auto [a, b] =
        std::mismatch(ours.begin(), ours.end(), golden.begin(), golden.end());
    const int64_t at = a - ours.begin();
    const bool tie = absl::c_any_of(margins, [](std::optional<double> margin) {
      return margin.has_value() && *margin < kTie;
    });
    if (!tie) {
      report_.Equal(name, ours, golden);
      return false;
    }
    report_.Note(absl::StrCat(name, " differs first at element ", at, ": ",
                              a == ours.end() ? "nothing" : absl::StrCat(*a),
                              ", golden ",
                              b == golden.end() ? "nothing" : absl::StrCat(*b),
                              "; excused, the reference was near a tie there"));
    if (at > 0) {
      const std::vector<int64_t> before(ours.begin(), a);
      report_.Equal(name, before, before);
    }
    return false;
  }

  absl::Status CheckText(const Turn& turn, const std::string& turn_name) {
    const std::string name = absl::StrCat(turn_name, ".answer");
    if (tokenizer_ == nullptr) {
      report_.Fail(name, "the model has no tokenizer");
      return absl::OkStatus();
    }
    StreamDecoder decoder(tokenizer_.get(),
                          StreamDecoder::SpecialTokens::kSkip);
    std::string text;
    for (const TokenId id : turn.answer) {
      DELTAEDGE_ASSIGN_OR_RETURN(const absl::string_view more,
                                 decoder.Push(id));
      absl::StrAppend(&text, more);
    }
    absl::StrAppend(&text, decoder.Flush());
    report_.Check(name, text == turn.text,
                  static_cast<int64_t>(turn.answer.size()),
                  absl::StrCat("\"", text, "\", golden \"", turn.text, "\""));
    return absl::OkStatus();
  }

  const ModelPair& pair_;
  Report& report_;
  std::unique_ptr<TargetRunner> plain_;    // Without a draft.
  std::unique_ptr<DraftRunner> drafting_;  // With one.
  std::unique_ptr<Tokenizer> tokenizer_;   // Null: the model has none.
  std::unique_ptr<ChatFormat> chat_;       // Likewise.
  int64_t steps_ = 0, tokens_ = 0;
};

}  // namespace

bool IsConversationGolden(const json& golden) {
  if (!golden.is_object()) return false;
  const auto found = golden.find("conversations");
  return found != golden.end() && found->is_array();
}

void CheckConversations(const ModelPair& pair, pthreadpool_t pool,
                        const json& golden, Report* report) {
  const int32_t vocab_size = pair.target().target_config().vocab_size;
  std::vector<std::pair<std::string, Turn>> all;
  int64_t longest = 1;
  const json& conversations = golden["conversations"];
  for (size_t i = 0; i < conversations.size(); ++i) {
    auto turns = ReadTurns(conversations[i], vocab_size);
    if (!turns.ok()) {
      report->Fail(absl::StrCat("conversation ", i), turns.status());
      continue;
    }
    for (size_t j = 0; j < turns->size(); ++j) {
      longest = std::max<int64_t>(longest, (*turns)[j].prompt.size());
      all.emplace_back(absl::StrCat("c", i, ".t", j), std::move((*turns)[j]));
    }
  }
  Conversations run(pair, report);
  const absl::Status status = run.Init(longest, pool);
  if (!status.ok()) return report->Fail("the models", status);
  for (const auto& [name, turn] : all) run.Check(turn, name);
  run.Summarise();
}

}  // namespace deltaedge
