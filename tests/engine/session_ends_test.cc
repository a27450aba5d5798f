// SPDX-License-Identifier: Apache-2.0

// Answers that end inside a block, and what a session is afterwards. The truth
// is plain decoding: tokens, and the bits of the scores.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/drafter.h"
#include "engine/engine.h"
#include "engine/options.h"
#include "engine/session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/session_runs.h"
#include "tests/testing/canary.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/emulated.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using testing::AllWays;
using testing::Answer;
using testing::By;
using testing::DFlash;
using testing::ExpectBeginning;
using testing::ExpectCountersAddUp;
using testing::Plain;
using testing::Right;
using testing::SomeWays;
using testing::Truth;
using testing::Until;
using testing::Way;
using testing::Wrong;

constexpr By kAll[] = {By::kGenerate, By::kNext, By::kStepMany};

const Engine* Open(const ModelFiles& files) {
  auto opened = Engine::Open(files, {/*num_threads=*/1});
  if (!opened.ok()) {
    ADD_FAILURE() << opened.status();
    std::abort();
  }
  return opened->release();
}

// Random weights and a draft of such, whose tokens are bytes. Quick.
const Engine& Bytes() {
  static const Engine* const engine =
      Open({testing::Runfile("tests/testdata/models/wide.gdn"),
            testing::Runfile("tests/testdata/models/wide_draft.gdn")});
  return *engine;
}

// The dictionary: tokens of many characters, and a draft that is often right.
const Engine& Words() {
  static const Engine* const engine = Open(testing::DemoPair());
  return *engine;
}

std::vector<TokenId> Ask(const std::string& text) {
  const auto ids = Words().chat().Render({{Role::kUser, text}});
  EXPECT_TRUE(ids.ok()) << ids.status();
  return *ids;
}

// Hardly a token twice, so that one of them can be a stop token.
SamplingOptions Hot() {
  SamplingOptions sampling;
  sampling.temperature = 1.0f;
  sampling.seed = 5;
  return sampling;
}

// A sampled text of bytes.
const Truth& Babble() {
  static const Truth* const truth =
      new Truth(&Bytes(), {7, 8, 9, 10, 11}, Hot(), 40);
  return *truth;
}

const Truth& Dog() {
  static const Truth* const truth =
      new Truth(&Words(), Ask("What is a dog?"), {}, 27);
  return *truth;
}

// --- Tokens and limits -------------------------------------------------------

// Case C11: the end lies inside a block that was accepted whole.
TEST(StopTokens, AtEveryPlaceOfABlock) {
  const Truth& truth = Babble();
  const std::vector<TokenId>& ids = truth.answer().ids;
  std::set<size_t> places;
  for (const Way& way : AllWays()) {
    SCOPED_TRACE(way.name);
    for (int at = 0; at <= way.rows; ++at) {
      const size_t first =
          std::find(ids.begin(), ids.end(), ids[at]) - ids.begin();
      places.insert(first);
      const auto session = truth.Prefilled(way);
      GenerateOptions rules = truth.rules();
      rules.stop_tokens = {299, ids[at]};
      const Answer answer = truth.Say(*session, rules, kAll[at % 3]);
      ExpectBeginning(answer, truth.answer(), first + 1);
      EXPECT_EQ(answer.reason, FinishReason::kStopToken);
      EXPECT_EQ(answer.texts.back(), "") << "a stop token is not printed";
      EXPECT_EQ(session->tokens().back(), ids[at]) << "and is in the sequence";
      truth.ExpectGoesOn(*session);
    }
  }
  EXPECT_GT(places.size(), 14u);
}

TEST(StopTokens, OfTheModelEndAnAnswerLikeOnesOwn) {
  const Truth& truth = Dog();
  for (const Way& way : {DFlash(), Right(15, Rollback::kSlots)}) {
    SCOPED_TRACE(way.name);
    const auto session = truth.Prefilled(way);
    GenerateOptions rules = truth.rules();
    rules.ignore_model_stop_tokens = false;
    rules.max_new_tokens = 100;
    const Answer answer = truth.Say(*session, rules);
    ExpectBeginning(answer, truth.answer(), 27);
    EXPECT_EQ(answer.reason, FinishReason::kStopToken);
  }
}

// Case C12: the end marker is in the model's context in all later turns.
TEST(StopTokens, AreCommittedAlikeInEveryTurn) {
  const Truth& truth = Dog();
  std::vector<std::vector<TokenId>> turns;
  for (const Way& way : {Plain(), DFlash(), DFlash(Rollback::kSlots)}) {
    SCOPED_TRACE(way.name);
    const auto session = truth.NewSession(way, /*max_context=*/512);
    size_t turn = 0;
    std::vector<const char*> texts = {"What is a dog?", "Use it in a sentence.",
                                      "Thanks!", "What is water?", "12 x 10"};
    texts.resize(testing::FewerIfEmulated("turns", 5, 2));
    for (const char* text : texts) {
      const auto ids =
          Words().chat().RenderAfter(session->tokens(), {{Role::kUser, text}});
      ASSERT_TRUE(ids.ok()) << ids.status();
      ASSERT_TRUE(session->Prefill(*ids).ok());
      GenerateOptions rules;
      rules.max_new_tokens = 60;
      EXPECT_EQ(truth.Say(*session, rules, kAll[turn % 3]).reason,
                FinishReason::kStopToken);
      EXPECT_EQ(session->tokens().back(), 4092) << "<|im_end|>";
      if (turn == turns.size()) turns.push_back(session->tokens());
      EXPECT_EQ(session->tokens(), turns[turn]) << text;
      EXPECT_EQ(session->position(), static_cast<int64_t>(turns[turn].size()));
      ++turn;
    }
    truth.ExpectGoesOn(*session);
  }
}

TEST(MaxNewTokens, AtEveryPlaceOfABlock) {
  const Truth& truth = Babble();
  for (const Way& way : AllWays()) {
    SCOPED_TRACE(way.name);
    for (int32_t count = 1; count <= way.rows + 1; ++count) {
      const auto session = truth.Prefilled(way);
      GenerateOptions rules = truth.rules();
      rules.max_new_tokens = count;
      const Answer answer = truth.Say(*session, rules, kAll[count % 3]);
      ExpectBeginning(answer, truth.answer(), count);
      EXPECT_EQ(answer.reason, FinishReason::kMaxTokens);
      EXPECT_EQ(session->stats().discarded, 0) << "the block was shortened";
      truth.ExpectGoesOn(*session);
    }
  }
}

TEST(MaxNewTokens, AStopTokenAtTheLimitIsAStop) {
  const Truth& truth = Babble();
  for (const Way& way : SomeWays()) {
    const auto session = truth.Prefilled(way);
    GenerateOptions rules = truth.rules();
    rules.max_new_tokens = 6;
    rules.stop_tokens = {truth.answer().ids[5]};
    const Answer answer = truth.Say(*session, rules);
    ExpectBeginning(answer, truth.answer(), 6);
    EXPECT_EQ(answer.reason, FinishReason::kStopToken) << way.name;
  }
}

// Case C19: the block shrinks, the last token is the oracle's, then the end.
void ExpectContextFills(const Truth& truth, const Way& way, int32_t context,
                        int32_t prompt) {
  SCOPED_TRACE(absl::StrCat(way.name, ", prompt ", prompt));
  const int32_t before = static_cast<int32_t>(truth.prompt().size());
  const auto session = truth.NewSession(way, context);
  ASSERT_TRUE(
      session->Prefill(absl::MakeConstSpan(truth.tokens()).first(prompt)).ok());
  const By by = kAll[prompt % 3];
  GenerateOptions rules = truth.rules();
  rules.max_new_tokens = 1000000;
  const Answer answer = truth.Say(*session, rules, by);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.reason, FinishReason::kContextFull);
  ASSERT_EQ(static_cast<int32_t>(answer.ids.size()), context - prompt);
  EXPECT_TRUE(std::equal(session->tokens().begin(), session->tokens().end(),
                         truth.tokens().begin()));
  const size_t vocab_size = truth.engine().info().vocab_size;
  EXPECT_TRUE(testing::SameBits(
      answer.logits.data(),
      truth.answer().logits.data() + (prompt - before) * vocab_size,
      answer.logits.size()));
  EXPECT_EQ(session->stats().discarded, 0) << "the block was shortened";
  // From here there are clean statuses.
  const Answer again = truth.Say(*session, rules, by);
  EXPECT_TRUE(again.status.ok()) << again.status;
  EXPECT_TRUE(again.ids.empty());
  EXPECT_EQ(again.reason, FinishReason::kContextFull);
  EXPECT_TRUE(absl::IsOutOfRange(session->Prefill({1})));
  EXPECT_TRUE(absl::IsOutOfRange(session->StartPrefill({1})));
  EXPECT_EQ(session->position(), context);
  session->Reset();
  ASSERT_TRUE(session->Prefill(truth.prompt()).ok());
  truth.ExpectGoesOn(*session);
}

TEST(ContextLimit, IsMetByAShorterBlock) {
  for (const Way& way : SomeWays()) {
    for (int32_t prompt = 5; prompt <= 32; prompt += prompt < 26 ? 7 : 1) {
      ExpectContextFills(Babble(), way, 32, prompt);
    }
  }
}

TEST(ContextLimit, IsMetByATrainedDraft) {
  const int32_t step = 6 / testing::FewerIfEmulated("lengths at the end", 6, 2);
  for (const Way& way : {DFlash(), DFlash(Rollback::kSlots)}) {
    for (int32_t prompt = 27; prompt <= 32; prompt += step) {
      ExpectContextFills(Dog(), way, 32, prompt);
    }
  }
}

// The draft sees less of the context than the target.
TEST(ContextLimit, IsMetByADraftWithAWindow) {
  const std::unique_ptr<const Engine> engine(
      Open({testing::Runfile("tests/testdata/models/t.gdn"),
            testing::Runfile("tests/testdata/models/t_draft_causal.gdn")}));
  const Truth truth(engine.get(), {3, 1, 4, 1, 5}, Hot(), 40);
  for (const Way& way : {DFlash(), DFlash(Rollback::kSlots), Until(15)}) {
    for (int32_t prompt = 5; prompt <= 32; ++prompt) {
      ExpectContextFills(truth, way, 32, prompt);
    }
  }
}

TEST(ContextLimit, WithinTheAnswerTheLimitOfTokensWins) {
  const Truth& truth = Babble();
  for (const Way& way : SomeWays()) {
    const auto session = truth.Prefilled(way, 16);
    GenerateOptions rules = truth.rules();
    rules.max_new_tokens = 11;
    const Answer answer = truth.Say(*session, rules);
    ExpectBeginning(answer, truth.answer(), 11);
    EXPECT_EQ(answer.reason, FinishReason::kMaxTokens) << way.name;
  }
}

// --- Prompts -----------------------------------------------------------------

// Case C9: prompts shorter than the convolution, fed in any pieces, by Prefill
// and by StepMany.
TEST(ShortPrompts, InAnyPieces) {
  const std::vector<TokenId> whole = {70, 3, 120, 45, 9};
  const size_t most =
      testing::FewerIfEmulated<size_t>("tokens of a prompt", 5, 3);
  for (size_t length = 1; length <= most; ++length) {
    const Truth truth(&Bytes(), {whole.begin(), whole.begin() + length}, Hot(),
                      12);
    for (const Way& way :
         {Plain(), DFlash(), Right(7), Until(15, Rollback::kSlots)}) {
      for (uint32_t cuts = 0; cuts < (1u << (length - 1)); ++cuts) {
        for (const bool step : {false, true}) {
          const auto session = truth.NewSession(way);
          size_t begin = 0;
          for (size_t end = 1; end <= length; ++end) {
            if (end != length && !(cuts >> (end - 1) & 1)) continue;
            const auto piece =
                absl::MakeConstSpan(truth.prompt()).subspan(begin, end - begin);
            begin = end;
            if (!step) {
              ASSERT_TRUE(session->Prefill(piece).ok());
            } else {
              ASSERT_TRUE(session->StartPrefill(piece).ok());
              while (session->prefill_left() > 0) {
                const auto each = Bytes().StepMany({session.get()});
                ASSERT_TRUE(each.ok() && each->front().ok());
              }
            }
            EXPECT_EQ(session->position(), static_cast<int64_t>(end));
            ExpectCountersAddUp(*session);
          }
          const Answer answer = truth.Say(*session, truth.rules());
          ExpectBeginning(answer, truth.answer(), 12);
        }
      }
    }
  }
}

TEST(ShortPrompts, OfNoTokensAreRefusedAndChangeNothing) {
  const Truth& truth = Babble();
  for (const Way& way : {Plain(), DFlash()}) {
    const auto session = truth.NewSession(way);
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(absl::IsInvalidArgument(session->Prefill({})));
      EXPECT_TRUE(absl::IsInvalidArgument(session->StartPrefill({})));
      EXPECT_EQ(session->position(), i == 0 ? 0 : 5);
      if (i == 0) {
        ASSERT_TRUE(session->Prefill(truth.prompt()).ok());
      }
    }
    const Answer answer = truth.Say(*session, truth.rules());
    ExpectBeginning(answer, truth.answer(), truth.answer().ids.size());
  }
}

// --- Stop texts --------------------------------------------------------------

// Where the plain text first completes one of `stops`.
struct Match {
  bool found = false;
  size_t begin = 0;   // Bytes of the text before the match.
  size_t tokens = 0;  // Up to the one that completes it.
};

Match FirstMatch(const Answer& plain, const std::vector<std::string>& stops) {
  const std::string text = plain.Text();
  for (size_t end = 1; end <= text.size(); ++end) {
    Match match;
    const absl::string_view until = absl::string_view(text).substr(0, end);
    for (const std::string& stop : stops) {
      if (!absl::EndsWith(until, stop)) continue;
      const size_t begin = end - stop.size();
      match.begin = match.found ? std::min(match.begin, begin) : begin;
      match.found = true;
    }
    if (!match.found) continue;
    while (plain.Text(match.tokens).size() < end) ++match.tokens;
    return match;
  }
  return {};
}

// Case C14: what arrives is the plain text before the match, as soon as it is
// certain; the sequence has the completing token and nothing behind it.
void ExpectStops(const Truth& truth, const Way& way,
                 const std::vector<std::string>& stops, By by) {
  SCOPED_TRACE(absl::StrCat(way.name, ", \"", stops[0], "\""));
  const Match match = FirstMatch(truth.answer(), stops);
  const auto session = truth.Prefilled(way);
  GenerateOptions rules = truth.rules();
  rules.stop_texts = stops;
  const Answer answer = truth.Say(*session, rules, by);
  const size_t count = match.found ? match.tokens : truth.answer().ids.size();
  ExpectBeginning(answer, truth.answer(), count);
  ASSERT_EQ(answer.texts.size(), count);
  EXPECT_EQ(answer.reason,
            match.found ? FinishReason::kStopText : FinishReason::kMaxTokens);
  const std::string whole = match.found
                                ? truth.answer().Text().substr(0, match.begin)
                                : truth.answer().Text() + truth.answer().tail;
  EXPECT_EQ(answer.Text() + answer.tail, whole);
  if (match.found) {
    EXPECT_EQ(answer.tail, "");
  }
  // Held back is what begins a stop text, and no more.
  const size_t certain = match.found ? count - 1 : count;
  for (size_t i = 1; i <= certain; ++i) {
    const std::string said = truth.answer().Text(i);
    const std::string arrived = answer.Text(i);
    ASSERT_TRUE(absl::StartsWith(said, arrived));
    ASSERT_TRUE(absl::StartsWith(whole, arrived));
    const std::string held = said.substr(arrived.size());
    EXPECT_TRUE(held.empty() ||
                std::any_of(stops.begin(), stops.end(),
                            [&held](const std::string& stop) {
                              return held.size() < stop.size() &&
                                     absl::StartsWith(stop, held);
                            }))
        << "\"" << held << "\"";
  }
  if (match.found) truth.ExpectGoesOn(*session);
}

// Texts of the Bytes() model in which characters of one and two bytes, and
// broken ones, lie across tokens.
const Truth& Syllables() {
  static const Truth* const truth = [] {
    SamplingOptions sampling = Hot();
    const std::set<TokenId> allowed = {'a', 'b', 'n', 0xC3, 0xA4, 0xBC};
    for (TokenId id = 0; id < Bytes().info().vocab_size; ++id) {
      if (allowed.count(id) == 0) sampling.logit_bias.push_back({id, -1e4f});
    }
    sampling.temperature = 3.0f;
    sampling.seed = 2;
    return new Truth(&Bytes(), {7, 8, 9, 10, 11}, sampling, 40);
  }();
  return *truth;
}

std::vector<std::string> Characters(absl::string_view text) {
  std::vector<std::string> characters;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {
      characters.emplace_back();
    }
    characters.back() += c;
  }
  return characters;
}

// Every token is a byte: these begin and end at all places of all blocks.
TEST(StopTexts, AnywhereAcrossTokensAndBlocks) {
  const Truth& truth = Syllables();
  const std::vector<std::string> characters = Characters(truth.answer().Text());
  ASSERT_GT(characters.size(), 26u);
  ASSERT_LT(characters.size(), truth.answer().ids.size());
  size_t round = 0;
  std::set<size_t> ends;
  for (size_t length : {1, 2, 3, 6}) {
    for (size_t begin = 0; begin + length <= 22; ++begin) {
      std::string stop;
      for (size_t i = begin; i < begin + length; ++i) stop += characters[i];
      ends.insert(FirstMatch(truth.answer(), {stop}).tokens);
      const std::vector<Way> ways = SomeWays();
      for (size_t i = 0; i < ways.size(); ++i) {
        if ((i + round) % (length == 3 ? 2 : 6) != 0) continue;
        ExpectStops(truth, ways[i], {stop}, kAll[(round + i) % 3]);
      }
      ++round;
    }
  }
  EXPECT_GT(ends.size(), 15u);
}

TEST(StopTexts, SeveralAndThoseThatOnlyBegin) {
  const Truth& truth = Syllables();
  const std::vector<std::string> characters = Characters(truth.answer().Text());
  testing::Random random(3);
  for (int round = 0; round < 15; ++round) {
    std::vector<std::string> stops;
    for (int i = random.Int(2, 4); i > 0; --i) {
      std::string stop;
      const int begin = random.Int(0, 25);
      for (int j = begin; j < begin + random.Int(1, 4) && j < 30; ++j) {
        stop += characters[j];
      }
      if (stop.empty() || random.OneIn(3)) stop += "\u00e4never";
      stops.push_back(std::move(stop));
    }
    const std::vector<Way> ways = SomeWays();
    for (size_t i = round % 2; i < ways.size(); i += 2) {
      ExpectStops(truth, ways[i], stops, kAll[(round + i) % 3]);
    }
  }
}

// Tokens of several characters: from the end of one into the next, inside of
// one, over three.
TEST(StopTexts, OfWords) {
  const Truth& truth = Dog();
  const std::vector<std::string>& texts = truth.answer().texts;
  std::vector<std::string> stops;
  for (const size_t i : {7, 15}) {
    ASSERT_FALSE(texts[i].empty() || texts[i + 1].empty());
    stops.push_back(texts[i].substr(texts[i].size() - 1) +
                    texts[i + 1].substr(0, 1));
    stops.push_back(texts[i].substr(texts[i].size() - 1) + texts[i + 1] +
                    texts[i + 2].substr(0, 1));
    if (texts[i].size() > 2) stops.push_back(texts[i].substr(1, 1));
  }
  stops.push_back("domesticated by man");
  stops.push_back("domesticated by woman");
  size_t round = 0;
  std::vector<Way> ways = {DFlash(), DFlash(Rollback::kSlots), Right(15)};
  ways.resize(testing::FewerIfEmulated("ways of drafting words", 3, 1));
  for (const Way& way : ways) {
    for (size_t i = 0; i < stops.size(); ++i) {
      ExpectStops(truth, way, {stops[i]}, kAll[round++ % 3]);
    }
  }
}

// The token that completes one meets a limit at the same time.
TEST(StopTexts, WinOverLimits) {
  const Truth& truth = Syllables();
  const std::vector<std::string> characters = Characters(truth.answer().Text());
  for (size_t begin = 0; begin < 14; begin += 2) {
    const std::string stop = characters[begin] + characters[begin + 1];
    const Match match = FirstMatch(truth.answer(), {stop});
    ASSERT_TRUE(match.found);
    for (const Way& way : SomeWays()) {
      SCOPED_TRACE(absl::StrCat(way.name, ", \"", stop, "\""));
      for (const bool full : {false, true}) {
        const int32_t context =
            static_cast<int32_t>(truth.prompt().size() + match.tokens);
        const auto session = truth.Prefilled(way, full ? context : 0);
        GenerateOptions rules = truth.rules();
        rules.stop_texts = {stop};
        if (!full) rules.max_new_tokens = static_cast<int32_t>(match.tokens);
        const Answer answer = truth.Say(*session, rules, kAll[begin / 2 % 3]);
        ExpectBeginning(answer, truth.answer(), match.tokens);
        EXPECT_EQ(answer.reason, FinishReason::kStopText);
        EXPECT_EQ(answer.Text(), truth.answer().Text().substr(0, match.begin));
        EXPECT_EQ(answer.tail, "");
        if (!full) truth.ExpectGoesOn(*session);
      }
    }
  }
}

// Whatever ends an answer while text is held back, the tail brings it.
TEST(StopTexts, HeldBackTextArrivesWhenSomethingElseEndsTheAnswer) {
  const Truth& truth = Babble();
  const std::vector<TokenId>& ids = truth.answer().ids;
  for (const size_t count : {2, 8, 16}) {
    ASSERT_EQ(std::count(ids.begin(), ids.begin() + count, ids[count - 1]), 1);
    for (const Way& way : SomeWays()) {
      for (const FinishReason reason :
           {FinishReason::kStopToken, FinishReason::kMaxTokens,
            FinishReason::kContextFull, FinishReason::kCancelled}) {
        for (const bool go_on : {false, true}) {
          SCOPED_TRACE(absl::StrCat(way.name, ", at ", count, ", reason ",
                                    static_cast<int>(reason)));
          // A stop token says nothing.
          const std::string said = truth.answer().Text(
              count - (reason == FinishReason::kStopToken ? 1 : 0));
          GenerateOptions rules = truth.rules();
          rules.stop_texts = {absl::StrCat(said, "never said")};
          int32_t context = 0;
          if (reason == FinishReason::kStopToken) {
            rules.stop_tokens = {ids[count - 1]};
          } else if (reason == FinishReason::kMaxTokens) {
            rules.max_new_tokens = static_cast<int32_t>(count);
          } else if (reason == FinishReason::kContextFull) {
            context = static_cast<int32_t>(truth.prompt().size() + count);
          }
          const auto session = truth.Prefilled(way, context);
          size_t seen = 0;
          const Answer answer = truth.Say(
              *session, rules, kAll[count % 3], [&](const TokenEvent&) {
                if (reason != FinishReason::kCancelled) return true;
                if (++seen == count && go_on) session->Cancel();
                return seen < count || go_on;
              });
          ExpectBeginning(answer, truth.answer(), count);
          EXPECT_EQ(answer.reason, reason);
          EXPECT_EQ(answer.Text(), "");
          // A character that was never completed follows as U+FFFD.
          EXPECT_TRUE(answer.tail == said || answer.tail == said + "\ufffd")
              << answer.tail;
          if (context == 0) truth.ExpectGoesOn(*session);
          if (reason != FinishReason::kCancelled) break;
        }
      }
    }
  }
}

// Text taken in the middle of a loop is out of reach for the stop texts.
TEST(StopTexts, DoNotBeginInATailThatWasTaken) {
  const Truth& truth = Syllables();
  for (const Way& way : SomeWays()) {
    SCOPED_TRACE(way.name);
    for (const bool take : {false, true}) {
      const auto session = truth.Prefilled(way);
      GenerateOptions rules = truth.rules();
      rules.max_new_tokens = 12;
      rules.stop_texts = {truth.answer().Text(9)};
      ASSERT_TRUE(session->Start(rules).ok());
      std::string said;
      for (int i = 0; i < 5; ++i) {
        const auto token = session->Next();
        ASSERT_TRUE(token.ok() && token->has_value());
        EXPECT_EQ((*token)->text, "");
      }
      if (take) {
        said += session->TakeTail();
        EXPECT_TRUE(absl::StartsWith(said, truth.answer().Text(5)));
        EXPECT_EQ(session->TakeTail(), "");
      }
      for (auto token = session->Next(); token.ok() && token->has_value();
           token = session->Next()) {
        said += std::string((*token)->text);
      }
      said += session->TakeTail();
      EXPECT_EQ(session->finish_reason(),
                take ? FinishReason::kMaxTokens : FinishReason::kStopText);
      EXPECT_EQ(said, take ? truth.answer().Text(12) : "");
    }
  }
}

// Nothing of one answer begins a stop text of the next.
TEST(StopTexts, LookAtOneAnswerOnly) {
  const Truth& truth = Syllables();
  const auto session = truth.Prefilled(Right(7));
  GenerateOptions rules = truth.rules();
  rules.max_new_tokens = 6;
  rules.stop_texts = {truth.answer().Text(9)};
  EXPECT_EQ(truth.Say(*session, rules).reason, FinishReason::kMaxTokens);
  EXPECT_EQ(truth.Say(*session, rules).reason, FinishReason::kMaxTokens);
}

TEST(StopTexts, WithoutATokenizerAreRefused) {
  const std::unique_ptr<const Engine> engine(
      Open({testing::Runfile("tests/testdata/models/t.gdn"), ""}));
  const Truth truth(engine.get(), {3, 1, 4}, {}, 9);
  const auto session = truth.Prefilled(Plain());
  GenerateOptions rules = truth.rules();
  rules.stop_texts = {"x"};
  const absl::Status status = session->Start(rules);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), ::testing::HasSubstr("tokenizer"));
  ExpectBeginning(truth.Say(*session, truth.rules()), truth.answer(), 9);
}

// --- Cancel ------------------------------------------------------------------

TEST(Cancel, FromTheCallbackAtEveryPlaceOfABlock) {
  const Truth& truth = Babble();
  for (const Way& way : AllWays()) {
    SCOPED_TRACE(way.name);
    for (int count = 1; count <= way.rows; ++count) {
      const auto session = truth.Prefilled(way);
      int seen = 0;
      const bool cancel = count % 2 == 0;
      const Answer answer = truth.Say(*session, truth.rules(), kAll[count % 3],
                                      [&](const TokenEvent&) {
                                        if (++seen < count) return true;
                                        if (cancel) session->Cancel();
                                        return cancel;
                                      });
      ExpectBeginning(answer, truth.answer(), count);
      EXPECT_EQ(answer.reason, FinishReason::kCancelled);
      EXPECT_EQ(session->waiting(), 0);
      truth.ExpectGoesOn(*session);
    }
  }
}

TEST(Cancel, AtTheLastTokenDoesNotHideTheReason) {
  const Truth& truth = Babble();
  for (const By by : kAll) {
    const auto session = truth.Prefilled(Right(7));
    GenerateOptions rules = truth.rules();
    rules.max_new_tokens = 5;
    size_t seen = 0;
    const Answer answer = truth.Say(
        *session, rules, by, [&](const TokenEvent&) { return ++seen < 5; });
    EXPECT_EQ(answer.reason, FinishReason::kMaxTokens);
    truth.ExpectGoesOn(*session);
  }
}

// Right drafts, in the middle of which another thread comes along.
class Interrupted : public Drafter {
 public:
  Interrupted(std::shared_ptr<Drafter> drafter, int round)
      : drafter_(std::move(drafter)), left_(round) {}
  ~Interrupted() override { Join(); }
  void Join() {
    if (other_.joinable()) other_.join();
  }
  void Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
               std::vector<TokenId>* drafts) override {
    drafter_->Propose(sequence, max_drafts, drafts);
    if (left_-- != 0) return;
    other_ = std::thread([this] {
      for (int i = 0; i < delay; ++i) ++count_;
      session->Cancel();
    });
    if (delay == 0) Join();
  }

  Session* session = nullptr;
  int delay = 0;  // 0: during the draft. Else some nanoseconds later, each.

 private:
  const std::shared_ptr<Drafter> drafter_;
  int left_;
  std::thread other_;
  std::atomic<int> count_{0};
};

Way InterruptedWay(const Way& way, int round, int delay,
                   std::shared_ptr<Interrupted>* drafter) {
  return {absl::StrCat(way.name, ", interrupted in round ", round), way.rows,
          [=](const std::vector<TokenId>& truth, int32_t vocab_size) {
            SessionOptions options = way.options(truth, vocab_size);
            *drafter = std::make_shared<Interrupted>(options.drafter, round);
            (*drafter)->delay = delay;
            options.drafter = *drafter;
            return options;
          }};
}

// Nothing of the step is kept, nor counted.
TEST(Cancel, FromAnotherThreadInADraft) {
  const Truth& truth = Babble();
  for (const Way& way :
       {Right(3), Right(15), Until(7), Wrong(7), Right(7, Rollback::kSlots)}) {
    for (int round = 0; round < 4; ++round) {
      SCOPED_TRACE(way.name);
      std::shared_ptr<Interrupted> drafter;
      const auto session =
          truth.Prefilled(InterruptedWay(way, round, 0, &drafter));
      drafter->session = session.get();
      const Answer answer = truth.Say(*session, truth.rules(), kAll[round % 3]);
      if (answer.reason == FinishReason::kMaxTokens) continue;  // All is said.
      EXPECT_EQ(answer.reason, FinishReason::kCancelled);
      EXPECT_EQ(session->stats().steps, round);
      EXPECT_EQ(session->stats().discarded, 0);
      ExpectBeginning(answer, truth.answer(), answer.ids.size());
      truth.ExpectGoesOn(*session);
    }
  }
}

// In a step, between any layers: at all sorts of moments.
TEST(Cancel, FromAnotherThreadInAStep) {
  const Truth& truth = Babble();
  int cancelled = 0;
  const int rounds = testing::FewerIfEmulated("moments of a step", 60, 12);
  for (int round = 0; round < rounds; ++round) {
    std::shared_ptr<Interrupted> drafter;
    const auto session = truth.Prefilled(
        InterruptedWay(round % 2 == 0 ? Right(5) : Right(5, Rollback::kSlots),
                       round % 4, 1 + 1500 * round, &drafter));
    drafter->session = session.get();
    const Answer answer = truth.Say(*session, truth.rules(), kAll[round % 3]);
    drafter->Join();
    cancelled += answer.reason == FinishReason::kCancelled;
    ExpectBeginning(answer, truth.answer(), answer.ids.size());
    // A cancel that comes late must not hit what follows.
    session->Cancel();
    truth.ExpectGoesOn(*session);
  }
  EXPECT_GT(cancelled, 0);
}

// A prompt is kept up to the last whole chunk.
TEST(Cancel, FromAnotherThreadInAPrompt) {
  std::vector<TokenId> prompt;
  testing::Random random(8);
  while (prompt.size() < 1200) prompt.push_back(random.Int(0, 299));
  const Truth truth(&Bytes(), prompt, Hot(), 6);
  const int rounds = testing::FewerIfEmulated("moments of a prompt", 6, 2);
  for (int round = 0; round < rounds; ++round) {
    const auto session =
        truth.NewSession(round % 2 == 0 ? DFlash() : Plain(Rollback::kSlots));
    int cancelled = 0;
    for (int64_t begin = 0; begin < 1200; begin = session->position()) {
      std::atomic<int> count{0};
      std::thread other([&] {
        for (int i = 0; i < 40000 * round; ++i) ++count;
        session->Cancel();
      });
      const auto rest = absl::MakeConstSpan(prompt).subspan(begin);
      // However often it is stopped, it gets there.
      const absl::Status status =
          session->Prefill(rest.first(std::min<size_t>(300, rest.size())));
      other.join();
      EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
      if (!status.ok()) ++cancelled;
      if (cancelled > 5) {
        ASSERT_TRUE(session
                        ->Prefill(absl::MakeConstSpan(prompt).subspan(
                            session->position()))
                        .ok());
      }
      ExpectCountersAddUp(*session);
      EXPECT_EQ(testing::Unaccounted(*session), 0);
    }
    ExpectBeginning(truth.Say(*session, truth.rules()), truth.answer(), 6);
  }
}

// What is left of a prompt for StepMany() is dropped, and the way is free.
TEST(Cancel, DropsWhatIsLeftOfAPrompt) {
  std::vector<TokenId> prompt;
  testing::Random random(9);
  while (prompt.size() < 700) prompt.push_back(random.Int(0, 299));
  const Truth truth(&Bytes(), prompt, Hot(), 6);
  for (int what = 0; what < 5; ++what) {
    SCOPED_TRACE(what);
    const auto session = truth.NewSession(DFlash());
    ASSERT_TRUE(session->StartPrefill(prompt).ok());
    ASSERT_TRUE(Bytes().StepMany({session.get()}).ok());
    const int64_t done = session->position();
    EXPECT_GT(done, 1);
    EXPECT_EQ(session->prefill_left(), 700 - done);
    EXPECT_TRUE(absl::IsFailedPrecondition(session->Start({})));
    session->Cancel();
    const auto rest = absl::MakeConstSpan(prompt).subspan(done);
    if (what == 0) {
      const auto each = Bytes().StepMany({session.get()});
      ASSERT_TRUE(each.ok());
      EXPECT_TRUE(absl::IsCancelled(each->front())) << each->front();
    } else if (what == 1) {
      truth.ExpectGoesOn(*session);
      continue;
    } else if (what == 2) {
      ASSERT_TRUE(session->StartPrefill(rest).ok());
      EXPECT_EQ(session->prefill_left(), 700 - done);
      session->Cancel();
    } else if (what == 3) {
      EXPECT_TRUE(absl::IsFailedPrecondition(session->Next().status()));
    }
    EXPECT_EQ(session->position(), done);
    ASSERT_TRUE(session->Prefill(rest).ok());
    EXPECT_EQ(session->prefill_left(), 0);
    ExpectBeginning(truth.Say(*session, truth.rules()), truth.answer(), 6);
  }
}

// --- Counters ----------------------------------------------------------------

// Right drafts, and nonsense when told so.
class Moody : public Drafter {
 public:
  explicit Moody(std::shared_ptr<Drafter> drafter)
      : drafter_(std::move(drafter)) {}
  void Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
               std::vector<TokenId>* drafts) override {
    if (nonsense) {
      drafts->push_back(-1);
    } else {
      drafter_->Propose(sequence, max_drafts, drafts);
    }
  }
  bool nonsense = false;

 private:
  const std::shared_ptr<Drafter> drafter_;
};

void ExpectNothingCounted(const Session& session, size_t drafts) {
  const SessionStats s = session.stats();
  EXPECT_EQ(s.prefill_tokens + s.delivered_tokens + s.discarded + s.steps +
                s.draft_steps + s.drafted + s.accepted,
            0);
  EXPECT_EQ(s.tried_at, std::vector<int64_t>(drafts));
  EXPECT_EQ(s.accepted_at, std::vector<int64_t>(drafts));
  EXPECT_EQ(s.verify_time + s.prefill_time + s.time_to_first_token,
            absl::ZeroDuration());
}

// Stops, cancels, errors, snapshots, forks and resets, in any order and in the
// middle of blocks.
TEST(Counters, AddUpWhateverHappens) {
  const Truth& truth = Babble();
  std::shared_ptr<Moody> drafter;
  const Way way = {
      "moody", 8, [&](const std::vector<TokenId>& tokens, int32_t vocab_size) {
        SessionOptions options = Until(7).options(tokens, vocab_size);
        drafter = std::make_shared<Moody>(options.drafter);
        options.drafter = drafter;
        return options;
      }};
  testing::Random random(4);
  auto session = truth.Prefilled(way);
  const auto snapshot = session->Take();
  ASSERT_TRUE(snapshot.ok());
  int errors = 0;
  const int rounds = testing::FewerIfEmulated("random events", 300, 100);
  for (int round = 0; round < rounds; ++round) {
    if (session->position() > 35) session->Reset();
    if (session->position() == 0) {
      ASSERT_TRUE(session->Prefill(truth.prompt()).ok());
    }
    GenerateOptions rules = truth.rules();
    rules.max_new_tokens = random.Int(1, 9);
    int left = random.Int(1, 9);
    switch (random.Int(0, 6)) {
      case 0:
        rules.stop_tokens = {
            truth.tokens()[session->position() + random.Int(0, 4)]};
        truth.Say(*session, rules, By::kNext);
        break;
      case 1:
        truth.Say(*session, rules, kAll[round % 3],
                  [&left](const TokenEvent&) { return --left > 0; });
        break;
      case 2: {
        drafter->nonsense = true;
        const Answer answer = truth.Say(*session, rules, kAll[round % 3]);
        errors += !answer.status.ok();
        drafter->nonsense = false;
        break;
      }
      case 3:  // Stays in the middle of a block.
        ASSERT_TRUE(session->Start(rules).ok());
        while (left-- > 0) ASSERT_TRUE(session->Next().ok());
        break;
      case 4:
        ASSERT_TRUE(session->Restore(*snapshot).ok());
        break;
      case 5: {
        const auto shared = drafter;
        auto fork = session->Fork();
        ASSERT_TRUE(fork.ok()) << fork.status();
        EXPECT_EQ((*fork)->position(), session->position());
        ExpectNothingCounted(**fork, 7);
        if (random.OneIn(2)) session = *std::move(fork);
        break;
      }
      case 6:
        ASSERT_TRUE(session
                        ->Prefill(absl::MakeConstSpan(truth.tokens())
                                      .subspan(session->position(), 3))
                        .ok());
        break;
    }
    ExpectCountersAddUp(*session);
    EXPECT_TRUE(std::equal(session->tokens().begin(), session->tokens().end(),
                           truth.tokens().begin()));
  }
  EXPECT_GT(errors, 5);
  session->Reset();
  ExpectNothingCounted(*session, 7);
}

}  // namespace
}  // namespace deltaedge
