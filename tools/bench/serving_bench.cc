// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/serving_bench.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "engine/base/status_macros.h"
#include "engine/options.h"
#include "engine/session.h"
#include "engine/stats.h"
#include "tools/bench/measure.h"

namespace deltaedge {

namespace {

using Clock = std::chrono::steady_clock;

// One way of drafting.
class Server {
 public:
  static absl::StatusOr<std::shared_ptr<Server>> Create(
      const SessionBench& bench, std::optional<int32_t> draft_tokens) {
    size_t longest = 0;
    for (const auto& prompt : bench.prompts) {
      longest = std::max(longest, prompt.size());
    }
    SessionOptions options;
    options.max_context = static_cast<int32_t>(
        std::min<int64_t>(bench.engine->info().max_context,
                          static_cast<int64_t>(longest) + bench.new_tokens));
    options.draft_tokens = draft_tokens;
    options.rollback = bench.rollbacks[0];
    std::shared_ptr<Server> server(new Server(bench));
    DELTAEDGE_ASSIGN_OR_RETURN(server->session_, NewSession(bench, options));
    return server;
  }

  absl::StatusOr<Sample> Run() {
    Sample sample;
    GenerateOptions options;
    options.max_new_tokens = bench_.new_tokens;
    options.ignore_model_stop_tokens = !bench_.stop_tokens;
    absl::Duration to_first, after_first;
    drafted_ = accepted_ = 0;
    tried_at_.clear();
    accepted_at_.clear();
    for (const std::vector<TokenId>& prompt : bench_.prompts) {
      session_->Reset();
      const Clock::time_point start = Clock::now();
      DELTAEDGE_RETURN_IF_ERROR(session_->Prefill(prompt));
      DELTAEDGE_RETURN_IF_ERROR(
          session_->Generate(options, [](const TokenEvent&) { return true; })
              .status());
      const absl::Duration time = absl::FromChrono(Clock::now() - start);
      DELTAEDGE_RETURN_IF_ERROR(CheckAnswer(bench_, *session_));
      const SessionStats stats = session_->stats();
      sample.time += time;
      sample.tokens += stats.delivered_tokens;
      sample.steps += stats.steps;
      to_first += stats.time_to_first_token;
      after_first += time - stats.time_to_first_token;
      drafted_ += stats.drafted;
      accepted_ += stats.accepted;
      Add(stats.tried_at, &tried_at_);
      Add(stats.accepted_at, &accepted_at_);
    }
    const auto prompts = static_cast<int64_t>(bench_.prompts.size());
    output_tokens_ = sample.tokens;
    to_first_ms_.push_back(absl::ToDoubleMilliseconds(to_first) / prompts);
    per_token_ms_.push_back(absl::ToDoubleMilliseconds(after_first) /
                            std::max<int64_t>(1, sample.tokens - prompts));
    return sample;
  }

  // Acceptance is that of the last repetition.
  void Describe(nlohmann::ordered_json* extra) const {
    const auto timed = [](const std::vector<double>& values) {
      return SpreadOf({values.begin() + 1, values.end()});
    };
    (*extra)["max_new_tokens"] = bench_.new_tokens;
    (*extra)["output_tokens"] = output_tokens_;
    AddSpread("time_to_first_token_ms", timed(to_first_ms_), extra);
    AddSpread("time_per_output_token_ms", timed(per_token_ms_), extra);
    if (drafted_ == 0) return;
    (*extra)["acceptance_rate"] = 1.0 * accepted_ / drafted_;
    auto at = nlohmann::ordered_json::array();
    for (size_t i = 0; i < tried_at_.size() && tried_at_[i] > 0; ++i) {
      at.push_back(1.0 * accepted_at_[i] / tried_at_[i]);
    }
    (*extra)["acceptance_at"] = std::move(at);
  }

 private:
  explicit Server(const SessionBench& bench) : bench_(bench) {}

  static void Add(const std::vector<int64_t>& counts,
                  std::vector<int64_t>* sums) {
    sums->resize(std::max(sums->size(), counts.size()));
    for (size_t i = 0; i < counts.size(); ++i) (*sums)[i] += counts[i];
  }

  const SessionBench& bench_;
  std::unique_ptr<Session> session_;
  std::vector<double> to_first_ms_, per_token_ms_;  // Of each Run().
  // Of the last one:
  int64_t output_tokens_ = 0, drafted_ = 0, accepted_ = 0;
  std::vector<int64_t> tried_at_, accepted_at_;
};

}  // namespace

absl::StatusOr<std::vector<Result>> BenchServing(const SessionBench& bench) {
  std::vector<std::optional<int32_t>> drafts = {0};
  drafts.insert(drafts.end(), bench.draft_tokens.begin(),
                bench.draft_tokens.end());
  Comparison comparison(bench);
  std::vector<std::shared_ptr<Server>> servers;
  for (const std::optional<int32_t> draft_tokens : drafts) {
    DELTAEDGE_ASSIGN_OR_RETURN(std::shared_ptr<Server> server,
                               Server::Create(bench, draft_tokens));
    comparison.Add(
        Labels(bench, "serving", draft_tokens == 0 ? "plain" : "drafts",
               draft_tokens, static_cast<int32_t>(bench.prompts.size())),
        bench.rollbacks[0], [server] { return server->Run(); });
    servers.push_back(std::move(server));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(std::vector<Result> results, comparison.Run());
  for (size_t i = 0; i < results.size(); ++i) {
    servers[i]->Describe(&results[i].extra);
  }
  return results;
}

}  // namespace deltaedge
