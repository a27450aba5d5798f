// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/step_bench.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/status_macros.h"
#include "engine/drafter.h"
#include "engine/model/config.h"
#include "engine/options.h"
#include "engine/session.h"
#include "tools/bench/layer_products.h"
#include "tools/bench/machine.h"
#include "tools/bench/measure.h"

namespace deltaedge {

namespace {

using Clock = std::chrono::steady_clock;

// Steps that are timed together, after one that is not: it folds what a block
// before it left, as the others do.
constexpr int32_t kTimedSteps = 3;
constexpr int32_t kMostTokens = (1 + kTimedSteps) * kMaxBlockRows;
static_assert(kRowsLeastContext == kMostTokens + 2);

// As many drafts as it is told.
class RandomDrafter : public Drafter {
 public:
  explicit RandomDrafter(int32_t vocab_size) : vocab_size_(vocab_size) {}

  void set_drafts(int32_t drafts) { drafts_ = drafts; }

  void Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
               std::vector<TokenId>* drafts) override {
    *drafts = RandomTokens(vocab_size_, std::min(drafts_, max_drafts),
                           /*seed=*/sequence.size());
  }

 private:
  const int32_t vocab_size_;
  int32_t drafts_ = 0;
};

// A session that always steps from the same place.
class Steps {
 public:
  static absl::StatusOr<std::shared_ptr<Steps>> Create(
      const SessionBench& bench, int32_t position, Rollback rollback) {
    const ModelInfo& info = bench.engine->info();
    auto steps = std::make_shared<Steps>();
    steps->drafter_ = std::make_shared<RandomDrafter>(info.vocab_size);
    SessionOptions options;
    options.max_context = position + 1 + kMostTokens;
    options.draft_tokens = kMaxBlockRows - 1;
    options.drafter = steps->drafter_;
    options.rollback = rollback;
    DELTAEDGE_ASSIGN_OR_RETURN(steps->session_,
                               bench.engine->NewSession(options));
    DELTAEDGE_RETURN_IF_ERROR(steps->session_->Prefill(
        RandomTokens(info.vocab_size, position + 1, /*seed=*/1)));
    DELTAEDGE_ASSIGN_OR_RETURN(Snapshot start, steps->session_->Take());
    steps->start_ = std::make_unique<Snapshot>(std::move(start));
    return steps;
  }

  absl::StatusOr<Sample> Run(int32_t rows) {
    DELTAEDGE_RETURN_IF_ERROR(session_->Restore(*start_));
    GenerateOptions options;
    options.max_new_tokens = kMostTokens;
    options.ignore_model_stop_tokens = true;
    DELTAEDGE_RETURN_IF_ERROR(session_->Start(options));
    drafter_->set_drafts(rows - 1);
    absl::Duration time;
    for (int32_t i = 0; i <= kTimedSteps; ++i) {
      const Clock::time_point start = Clock::now();
      DELTAEDGE_RETURN_IF_ERROR(session_->Next().status());
      if (i > 0) time += absl::FromChrono(Clock::now() - start);
      while (session_->waiting() > 0) {
        DELTAEDGE_RETURN_IF_ERROR(session_->Next().status());
      }
    }
    return Sample{time / kTimedSteps, /*tokens=*/rows, /*steps=*/1};
  }

 private:
  std::shared_ptr<RandomDrafter> drafter_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Snapshot> start_;
};

}  // namespace

absl::StatusOr<std::vector<Result>> BenchRows(
    const SessionBench& bench, const std::vector<int32_t>& rows) {
  const int32_t position = std::min(
      kRowsPosition, bench.engine->info().max_context - 1 - kMostTokens);
  std::vector<int32_t> counts = {1};
  for (const int32_t count : rows) {
    if (count != 1) counts.push_back(count);
  }
  std::vector<Result> results;
  for (const Rollback rollback : bench.rollbacks) {
    DELTAEDGE_ASSIGN_OR_RETURN(const std::shared_ptr<Steps> steps,
                               Steps::Create(bench, position, rollback));
    Comparison comparison(bench);
    for (const int32_t count : counts) {
      Result labels;
      labels.test = "rows";
      labels.way = "step";
      labels.draft_tokens = count - 1;
      labels.n = count;
      labels.extra["position"] = position;
      comparison.Add(std::move(labels), rollback,
                     [steps, count] { return steps->Run(count); });
    }
    DELTAEDGE_ASSIGN_OR_RETURN(std::vector<Result> all, comparison.Run());
    for (Result& result : all) {
      AddSpread("r", TimeRatio(result.measured, all[0].measured),
                &result.extra);
      results.push_back(result);
    }
  }
  return results;
}

absl::StatusOr<std::vector<Result>> BenchPrefill(
    const SessionBench& bench, const std::vector<int32_t>& rows,
    const ModelFile& target) {
  const ModelInfo& info = bench.engine->info();
  const int32_t most = *std::max_element(rows.begin(), rows.end());
  std::unique_ptr<LayerProducts> products;
  if (target.target_config().moe.experts == 0) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        products, LayerProducts::Create(target, most, info.threads));
  }
  SessionOptions options;
  options.max_context = most + 1;
  options.draft_tokens = 0;
  DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                             bench.engine->NewSession(options));
  std::vector<Result> results;
  for (const int32_t count : rows) {
    const std::vector<TokenId> prompt =
        RandomTokens(info.vocab_size, count + 1, /*seed=*/1);
    Comparison comparison(bench);
    Result labels;
    labels.test = "prefill";
    labels.way = "plain";
    labels.n = count;
    comparison.Add(labels, options.rollback, [&]() -> absl::StatusOr<Sample> {
      session->Reset();
      LetOthersRest();
      const Clock::time_point start = Clock::now();
      DELTAEDGE_RETURN_IF_ERROR(session->Prefill(prompt));
      return Sample{absl::FromChrono(Clock::now() - start), count};
    });
    if (products != nullptr) {
      comparison.Add(labels, options.rollback, [&]() -> absl::StatusOr<Sample> {
        LetOthersRest();
        return Sample{products->Run(count), count};
      });
    }
    DELTAEDGE_ASSIGN_OR_RETURN(std::vector<Result> both, comparison.Run());
    if (products != nullptr) {
      AddSpread("share_of_product_rate",
                TimeRatio(both[1].measured, both[0].measured), &both[0].extra);
    }
    results.push_back(std::move(both[0]));
  }
  return results;
}

std::vector<TokenId> RandomTokens(int32_t vocab_size, int64_t count,
                                  uint64_t seed) {
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(static_cast<TokenId>((seed >> 33) % vocab_size));
  }
  return tokens;
}

}  // namespace deltaedge
