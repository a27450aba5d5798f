// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/session_bench.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/base/status_macros.h"
#include "engine/model/config.h"
#include "engine/options.h"
#include "engine/session.h"
#include "tools/bench/launch_time.h"
#include "tools/bench/measure.h"

namespace deltaedge {

namespace {

using Clock = std::chrono::steady_clock;

// Sessions with a prompt each, whose answers are timed again and again.
class Answers {
 public:
  static absl::StatusOr<Answers> Create(const SessionBench& bench,
                                        int32_t sessions, Rollback rollback,
                                        std::optional<int32_t> draft_tokens) {
    Answers answers(bench);
    for (int32_t i = 0; i < sessions; ++i) {
      SessionOptions options;
      options.max_context = static_cast<int32_t>(std::min<int64_t>(
          bench.engine->info().max_context,
          answers.prompt(i).size() + int64_t{answers.MostTokens()}));
      options.draft_tokens = draft_tokens;
      options.rollback = rollback;
      DELTAEDGE_ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                                 NewSession(bench, options));
      answers.sessions_.push_back(std::move(session));
    }
    return answers;
  }

  absl::StatusOr<Sample> Apart() {
    DELTAEDGE_RETURN_IF_ERROR(Rewind());
    return RunApart();
  }

  // What of Apart() is spent outside of launches, in percent. A run of its own:
  // looking at it takes time.
  absl::StatusOr<double> BookkeepingPercent() {
    DELTAEDGE_RETURN_IF_ERROR(Rewind());
    const LaunchTime launches;
    DELTAEDGE_ASSIGN_OR_RETURN(const Sample sample, RunApart());
    const absl::Duration time = sample.time - launches.own();
    return 100.0 * absl::FDivDuration(time - launches.inside(), time);
  }

  absl::StatusOr<Sample> Together() {
    DELTAEDGE_RETURN_IF_ERROR(Rewind());
    std::vector<Session*> active;
    for (const auto& session : sessions_) active.push_back(session.get());
    const Clock::time_point start = Clock::now();
    while (!active.empty()) {
      DELTAEDGE_ASSIGN_OR_RETURN(const std::vector<absl::Status> statuses,
                                 bench_.engine->StepMany(active));
      for (const absl::Status& status : statuses) {
        DELTAEDGE_RETURN_IF_ERROR(status);
      }
      for (Session* session : active) {
        while (session->waiting() > 0) {
          DELTAEDGE_RETURN_IF_ERROR(session->Next().status());
        }
      }
      active.erase(std::remove_if(active.begin(), active.end(),
                                  [this](const Session* session) {
                                    return Ended(*session);
                                  }),
                   active.end());
    }
    return Finish(start);
  }

 private:
  explicit Answers(const SessionBench& bench) : bench_(bench) {}

  const std::vector<TokenId>& prompt(size_t session) const {
    return bench_.prompts[session % bench_.prompts.size()];
  }

  // Whole steps: one with fewer drafts because the answer ends would not be
  // like the others.
  int32_t MostTokens() const { return bench_.new_tokens + kMaxBlockRows; }
  bool Ended(const Session& session) const {
    return session.finish_reason() != FinishReason::kNone ||
           (session.stats().delivered_tokens >= bench_.new_tokens &&
            session.waiting() == 0);
  }

  absl::StatusOr<Sample> RunApart() {
    const Clock::time_point start = Clock::now();
    for (const auto& session : sessions_) {
      while (!Ended(*session)) {
        DELTAEDGE_RETURN_IF_ERROR(session->Next().status());
      }
    }
    return Finish(start);
  }

  // Everything up to the first step of an answer.
  absl::Status Rewind() {
    GenerateOptions options;
    options.max_new_tokens = MostTokens();
    options.ignore_model_stop_tokens = !bench_.stop_tokens;
    for (size_t i = 0; i < sessions_.size(); ++i) {
      sessions_[i]->Reset();
      DELTAEDGE_RETURN_IF_ERROR(sessions_[i]->Prefill(prompt(i)));
      DELTAEDGE_RETURN_IF_ERROR(sessions_[i]->Start(options));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Sample> Finish(Clock::time_point start) const {
    Sample sample;
    sample.time = absl::FromChrono(Clock::now() - start);
    for (const auto& session : sessions_) {
      DELTAEDGE_RETURN_IF_ERROR(CheckAnswer(bench_, *session));
      sample.tokens += session->stats().delivered_tokens;
      sample.steps += session->stats().steps;
    }
    return sample;
  }

  const SessionBench& bench_;
  std::vector<std::unique_ptr<Session>> sessions_;
};

enum class Way { kApart, kTogether };

absl::Status AddAnswers(const SessionBench& bench, Result labels,
                        int32_t sessions, Way way, Rollback rollback,
                        Comparison* comparison) {
  DELTAEDGE_ASSIGN_OR_RETURN(
      Answers created,
      Answers::Create(bench, sessions, rollback, labels.draft_tokens));
  const auto answers = std::make_shared<Answers>(std::move(created));
  Comparison::Share bookkeeping;
  if (sessions == 1) {
    bookkeeping = [answers] { return answers->BookkeepingPercent(); };
  }
  comparison->Add(
      std::move(labels), rollback,
      [answers, way] {
        return way == Way::kApart ? answers->Apart() : answers->Together();
      },
      std::move(bookkeeping));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> NewSession(
    const SessionBench& bench, const SessionOptions& options) {
  return bench.synthetic == nullptr || options.draft_tokens == 0
             ? bench.engine->NewSession(options)
             : bench.synthetic->NewSession(*bench.engine, options);
}

absl::Status CheckAnswer(const SessionBench& bench, const Session& session) {
  return bench.synthetic == nullptr ? absl::OkStatus()
                                    : bench.synthetic->Check(session.tokens());
}

Result Labels(const SessionBench& bench, const char* test, const char* way,
              std::optional<int32_t> draft_tokens, int32_t n) {
  Result labels;
  labels.test = test;
  labels.way = way;
  labels.draft_tokens = draft_tokens;
  labels.n = n;
  if (bench.synthetic != nullptr && draft_tokens != 0) {
    labels.extra["synthetic_acceptance"] = bench.synthetic->mean_tokens();
  }
  return labels;
}

void Comparison::Add(Result labels, Rollback rollback, Candidate candidate,
                     Share bookkeeping) {
  labels.rollback = rollback == Rollback::kSlots ? "slots" : "journal";
  labels.threads = bench_.engine->info().threads;
  results_.push_back(std::move(labels));
  candidates_.push_back(std::move(candidate));
  bookkeeping_.push_back(std::move(bookkeeping));
}

absl::StatusOr<std::vector<Result>> Comparison::Run() const {
  DELTAEDGE_ASSIGN_OR_RETURN(
      std::vector<Measurement> measured,
      Alternate(candidates_, bench_.repetitions, bench_.stop));
  std::vector<Result> results = results_;
  for (size_t i = 0; i < measured.size(); ++i) {
    results[i].measured = std::move(measured[i]);
    if (bookkeeping_[i] == nullptr) continue;
    std::vector<double> percent(static_cast<size_t>(bench_.repetitions));
    for (double& value : percent) {
      DELTAEDGE_ASSIGN_OR_RETURN(value, bookkeeping_[i]());
    }
    AddSpread("bookkeeping_percent", SpreadOf(percent), &results[i].extra);
  }
  return results;
}

absl::StatusOr<std::vector<Result>> BenchDecode(const SessionBench& bench,
                                                const TokenBytes& bytes,
                                                ReadStream* stream) {
  Comparison comparison(bench);
  for (const Rollback rollback : bench.rollbacks) {
    DELTAEDGE_RETURN_IF_ERROR(
        AddAnswers(bench, Labels(bench, "decode", "plain", 0, bench.new_tokens),
                   1, Way::kApart, rollback, &comparison));
  }
  comparison.Add(Result(), bench.rollbacks[0], [stream] {
    LetOthersRest();
    return Sample{stream->Read(), /*tokens=*/1};
  });
  DELTAEDGE_ASSIGN_OR_RETURN(std::vector<Result> results, comparison.Run());
  const Measurement stream_measured = std::move(results.back().measured);
  results.pop_back();
  std::vector<double> rates;
  for (const double seconds : stream_measured.seconds) {
    rates.push_back(ReadStream::kBytes / seconds / 1e9);
  }
  // The first token's step is as long as the others: prompts end before it.
  const int64_t middle =
      static_cast<int64_t>(bench.prompts[0].size()) + bench.new_tokens / 2;
  for (Result& result : results) {
    const Measurement& m = result.measured;
    const double tokens = m.tokens_per_second * m.ms.median / 1e3;
    const double streams =
        tokens * static_cast<double>(bytes.At(middle)) / ReadStream::kBytes;
    Spread share = TimeRatio(stream_measured, m);
    share = {share.median * streams, share.min * streams, share.max * streams};
    AddSpread("share_of_roofline", share, &result.extra);
    AddSpread("read_gb_per_second", SpreadOf(rates), &result.extra);
  }
  return results;
}

absl::StatusOr<std::vector<Result>> BenchSpec(const SessionBench& bench) {
  Comparison comparison(bench);
  DELTAEDGE_RETURN_IF_ERROR(
      AddAnswers(bench, Labels(bench, "spec", "plain", 0, bench.new_tokens), 1,
                 Way::kApart, bench.rollbacks[0], &comparison));
  for (const std::optional<int32_t> draft_tokens : bench.draft_tokens) {
    for (const Rollback rollback : bench.rollbacks) {
      DELTAEDGE_RETURN_IF_ERROR(AddAnswers(
          bench,
          Labels(bench, "spec", "drafts", draft_tokens, bench.new_tokens), 1,
          Way::kApart, rollback, &comparison));
    }
  }
  return comparison.Run();
}

absl::StatusOr<std::vector<Result>> BenchSessions(const SessionBench& bench,
                                                  int32_t sessions) {
  std::vector<Result> results;
  std::vector<std::optional<int32_t>> drafts = {0};
  drafts.insert(drafts.end(), bench.draft_tokens.begin(),
                bench.draft_tokens.end());
  for (const std::optional<int32_t> draft_tokens : drafts) {
    Comparison comparison(bench);
    DELTAEDGE_RETURN_IF_ERROR(AddAnswers(
        bench, Labels(bench, "sessions", "apart", draft_tokens, sessions),
        sessions, Way::kApart, bench.rollbacks[0], &comparison));
    DELTAEDGE_RETURN_IF_ERROR(AddAnswers(
        bench, Labels(bench, "sessions", "together", draft_tokens, sessions),
        sessions, Way::kTogether, bench.rollbacks[0], &comparison));
    DELTAEDGE_ASSIGN_OR_RETURN(std::vector<Result> both, comparison.Run());
    for (Result& result : both) results.push_back(std::move(result));
  }
  return results;
}

}  // namespace deltaedge
