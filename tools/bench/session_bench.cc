// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/session_bench.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/base/status_macros.h"
#include "engine/options.h"
#include "engine/session.h"
#include "tools/bench/measure.h"

namespace deltaedge {

namespace {

using Clock = std::chrono::steady_clock;

// Sessions with a prompt each, whose answers are timed again and again.
class Answers {
 public:
  static absl::StatusOr<Answers> Create(const SessionBench& bench,
                                        int32_t sessions, Rollback rollback,
                                        int32_t draft_tokens) {
    Answers answers(bench);
    for (int32_t i = 0; i < sessions; ++i) {
      SessionOptions options;
      options.max_context = static_cast<int32_t>(std::min<int64_t>(
          bench.engine->info().max_context,
          answers.prompt(i).size() + int64_t{bench.new_tokens}));
      options.draft_tokens = draft_tokens;
      options.rollback = rollback;
      DELTAEDGE_ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                                 bench.engine->NewSession(options));
      answers.sessions_.push_back(std::move(session));
    }
    return answers;
  }

  absl::StatusOr<Sample> Apart() {
    DELTAEDGE_RETURN_IF_ERROR(Rewind());
    const Clock::time_point start = Clock::now();
    for (const auto& session : sessions_) {
      while (session->finish_reason() == FinishReason::kNone) {
        DELTAEDGE_RETURN_IF_ERROR(session->Next().status());
      }
    }
    return Finish(start);
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
                                  [](const Session* session) {
                                    return session->finish_reason() !=
                                           FinishReason::kNone;
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

  // Everything up to the first step of an answer.
  absl::Status Rewind() {
    GenerateOptions options;
    options.max_new_tokens = bench_.new_tokens;
    options.ignore_model_stop_tokens = !bench_.stop_tokens;
    for (size_t i = 0; i < sessions_.size(); ++i) {
      sessions_[i]->Reset();
      DELTAEDGE_RETURN_IF_ERROR(sessions_[i]->Prefill(prompt(i)));
      DELTAEDGE_RETURN_IF_ERROR(sessions_[i]->Start(options));
    }
    return absl::OkStatus();
  }

  Sample Finish(Clock::time_point start) const {
    Sample sample;
    sample.time = absl::FromChrono(Clock::now() - start);
    for (const auto& session : sessions_) {
      sample.tokens += session->stats().delivered_tokens;
      sample.steps += session->stats().steps;
    }
    return sample;
  }

  const SessionBench& bench_;
  std::vector<std::unique_ptr<Session>> sessions_;
};

enum class Way { kApart, kTogether };

// Candidates and what their results are called.
class Group {
 public:
  Group(const SessionBench& bench, std::string test, int32_t n)
      : bench_(bench), test_(std::move(test)), n_(n) {}

  absl::Status Add(const std::string& name, int32_t sessions, Way way,
                   Rollback rollback, int32_t draft_tokens) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        Answers created,
        Answers::Create(bench_, sessions, rollback, draft_tokens));
    const auto answers = std::make_shared<Answers>(std::move(created));
    candidates_.push_back([answers, way] {
      return way == Way::kApart ? answers->Apart() : answers->Together();
    });
    Result& result = results_.emplace_back();
    result.test = test_;
    result.way = name;
    result.rollback = rollback == Rollback::kSlots ? "slots" : "journal";
    result.threads = bench_.engine->info().threads;
    result.draft_tokens = draft_tokens;
    result.n = n_;
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Result>> Run() {
    DELTAEDGE_ASSIGN_OR_RETURN(const std::vector<Measurement> measured,
                               Alternate(candidates_, bench_.repetitions));
    for (size_t i = 0; i < measured.size(); ++i) {
      results_[i].measured = measured[i];
    }
    return std::move(results_);
  }

 private:
  const SessionBench& bench_;
  const std::string test_;
  const int32_t n_;
  std::vector<Candidate> candidates_;
  std::vector<Result> results_;
};

int32_t ModelDrafts(const SessionBench& bench) {
  return std::max(0, bench.engine->info().draft_block - 1);
}

}  // namespace

absl::StatusOr<std::vector<Result>> BenchDecode(const SessionBench& bench) {
  Group group(bench, "decode", bench.new_tokens);
  for (const Rollback rollback : bench.rollbacks) {
    DELTAEDGE_RETURN_IF_ERROR(
        group.Add("plain", 1, Way::kApart, rollback, /*draft_tokens=*/0));
  }
  return group.Run();
}

absl::StatusOr<std::vector<Result>> BenchSpec(const SessionBench& bench) {
  Group group(bench, "spec", bench.new_tokens);
  DELTAEDGE_RETURN_IF_ERROR(
      group.Add("plain", 1, Way::kApart, bench.rollbacks[0], 0));
  for (const Rollback rollback : bench.rollbacks) {
    DELTAEDGE_RETURN_IF_ERROR(
        group.Add("drafts", 1, Way::kApart, rollback, ModelDrafts(bench)));
  }
  return group.Run();
}

absl::StatusOr<std::vector<Result>> BenchSessions(const SessionBench& bench,
                                                  int32_t sessions) {
  std::vector<Result> results;
  std::vector<int32_t> drafts = {0};
  if (ModelDrafts(bench) > 0) drafts.push_back(ModelDrafts(bench));
  for (const int32_t draft_tokens : drafts) {
    Group group(bench, "sessions", sessions);
    DELTAEDGE_RETURN_IF_ERROR(group.Add("apart", sessions, Way::kApart,
                                        bench.rollbacks[0], draft_tokens));
    DELTAEDGE_RETURN_IF_ERROR(group.Add("together", sessions, Way::kTogether,
                                        bench.rollbacks[0], draft_tokens));
    DELTAEDGE_ASSIGN_OR_RETURN(std::vector<Result> both, group.Run());
    for (Result& result : both) results.push_back(std::move(result));
  }
  return results;
}

}  // namespace deltaedge
