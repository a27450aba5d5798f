// SPDX-License-Identifier: Apache-2.0

// A conversation on a terminal, or one question and its answer. Uses nothing
// but the SDK's public headers.

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/engine.h"
#include "engine/log.h"
#include "tools/cpp/runfiles/runfiles.h"

namespace {

// The value of a flag, which may be the empty text, or its absence.
struct MaybeText {
  std::optional<std::string> text;
};

bool AbslParseFlag(absl::string_view text, MaybeText* flag, std::string*) {
  flag->text = std::string(text);
  return true;
}

std::string AbslUnparseFlag(const MaybeText& flag) {
  return flag.text.value_or("");
}

}  // namespace

ABSL_FLAG(std::string, target, "",
          "model file (*.gdn); empty: the dictionary that comes along");
ABSL_FLAG(std::string, draft, "",
          "draft made for --target; empty: none, or the dictionary's own");
ABSL_FLAG(MaybeText, prompt, {},
          "answer this and leave: the reply on standard output, all else on "
          "standard error");
ABSL_FLAG(MaybeText, system, {}, "system message");
ABSL_FLAG(std::string, thinking, "auto",
          "on, off, or auto for the model's own habit; reasoning goes to "
          "standard error");
ABSL_FLAG(int32_t, max_new_tokens, 512, "tokens of one answer, at most");
ABSL_FLAG(int32_t, max_context, 0,
          "tokens of the whole conversation, at most; 0: the model's limit");
ABSL_FLAG(std::string, draft_tokens, "auto",
          "tokens drafted per step; auto: what pays most; 0: plain decoding. "
          "Changes the speed and nothing else");
ABSL_FLAG(bool, lookup, false,
          "draft what came after the same tokens before, in place of the draft "
          "model. Changes the speed and nothing else");
ABSL_FLAG(std::string, rollback, "journal",
          "how drafts in vain are taken back: journal, or slots, the reference "
          "design, for comparison. Changes the speed and nothing else");
ABSL_FLAG(float, temperature, 0.0f,
          "0: always the likeliest token; 1: each as often as the model says; "
          "above: more even");
ABSL_FLAG(int32_t, top_k, 0, "only the so many likeliest tokens; 0: all");
ABSL_FLAG(float, top_p, 1.0f,
          "only the fewest likeliest tokens that together reach this "
          "probability; 1: all");
ABSL_FLAG(float, min_p, 0.0f,
          "only tokens with this part of the likeliest one's probability; "
          "0: all");
ABSL_FLAG(std::optional<uint64_t>, seed, std::nullopt,
          "of the random numbers: the same gives the same answers; empty: "
          "another one for each answer, which --stats tells");
ABSL_FLAG(float, repetition_penalty, 1.0f,
          "above 1: tokens of the conversation become less likely");
ABSL_FLAG(float, presence_penalty, 0.0f,
          "above 0: tokens of the answer become less likely");
ABSL_FLAG(float, frequency_penalty, 0.0f,
          "above 0: the same for every time that they are there");
ABSL_FLAG(std::vector<std::string>, stop, {},
          "texts that end an answer before they are said, separated by "
          "commas");
ABSL_FLAG(int32_t, threads, 0,
          "threads; 0: as many as there are processors, or big cores");
ABSL_FLAG(bool, big_cores, false, "keep the threads on the big cores");
ABSL_FLAG(bool, stats, false, "tell the speed and acceptance of each answer");

namespace {

using deltaedge::ChatMessage;
using deltaedge::Engine;
using deltaedge::FinishReason;
using deltaedge::Role;
using deltaedge::Session;
using deltaedge::SessionStats;
using deltaedge::TokenEvent;
using deltaedge::TokenId;

// For the signal handler; lock-free, so safe there.
std::atomic<Session*> g_session{nullptr};
std::atomic<bool> g_interrupted{false};

void OnInterrupt(int) {
  g_interrupted.store(true, std::memory_order_relaxed);
  Session* session = g_session.load(std::memory_order_relaxed);
  if (session != nullptr) session->Cancel();
}

// SA_RESTART: a write that is under way must not fail. 0: waiting for a line
// must notice.
void CatchInterrupts(int flags) {
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  action.sa_flags = flags;
  sigaction(SIGINT, &action, nullptr);
}

struct Settings {
  deltaedge::ModelFiles files;
  std::optional<std::string> prompt, system;
  deltaedge::EngineOptions engine;
  deltaedge::SessionOptions session;
  deltaedge::GenerateOptions generate;
  deltaedge::RenderOptions render;
};

// `bazel run` starts programs in a folder of its own and says where it was
// called; paths are meant from there.
std::string UserPath(const std::string& path) {
  const char* folder = getenv("BUILD_WORKING_DIRECTORY");
  if (folder == nullptr || path.empty() || path[0] == '/') return path;
  return absl::StrCat(folder, "/", path);
}

// Found by the name the program was called by, or, called through a link or
// from $PATH, by where it really is.
absl::StatusOr<std::string> BundledFile(const char* program, const char* name) {
  using bazel::tools::cpp::runfiles::Runfiles;
  const std::string key = absl::StrCat("deltaedge/examples/chat/model/", name);
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
  self[std::max<ssize_t>(length, 0)] = '\0';
  std::string error;
  for (const auto& runfiles :
       {absl::WrapUnique(Runfiles::Create(program, &error)),
        absl::WrapUnique(Runfiles::Create(self, "", "", &error))}) {
    if (runfiles == nullptr) continue;
    std::string path = runfiles->Rlocation(key);
    if (!path.empty() && access(path.c_str(), R_OK) == 0) return path;
  }
  return absl::NotFoundError(absl::StrCat(
      "the dictionary's ", name,
      " is not beside this program; start it with `bazel run`, or name a "
      "model with --target"));
}

absl::Status About(absl::string_view what, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(what, ": ", status.message()));
}

bool IsBlank(absl::string_view text) {
  return absl::StripAsciiWhitespace(text).empty();
}

absl::StatusOr<Settings> ReadFlags(const char* program) {
  Settings settings;
  settings.prompt = absl::GetFlag(FLAGS_prompt).text;
  settings.system = absl::GetFlag(FLAGS_system).text;
  if (settings.prompt.has_value() && IsBlank(*settings.prompt)) {
    return absl::InvalidArgumentError(
        "--prompt is empty; leave it out for a conversation");
  }
  settings.files.target = UserPath(absl::GetFlag(FLAGS_target));
  settings.files.draft = UserPath(absl::GetFlag(FLAGS_draft));
  if (settings.files.target.empty()) {
    if (!settings.files.draft.empty()) {
      return absl::InvalidArgumentError("--draft needs --target");
    }
    for (auto [name, path] : {std::pair("target.gdn", &settings.files.target),
                              std::pair("draft.gdn", &settings.files.draft)}) {
      absl::StatusOr<std::string> bundled = BundledFile(program, name);
      if (!bundled.ok()) return bundled.status();
      *path = *bundled;
    }
  }
  settings.engine.num_threads = absl::GetFlag(FLAGS_threads);
  if (absl::GetFlag(FLAGS_big_cores)) {
    settings.engine.placement = deltaedge::EngineOptions::Placement::kBigCores;
  }
  settings.session.max_context = absl::GetFlag(FLAGS_max_context);
  settings.generate.max_new_tokens = absl::GetFlag(FLAGS_max_new_tokens);
  const std::string draft_tokens = absl::GetFlag(FLAGS_draft_tokens);
  if (draft_tokens != "auto") {
    int32_t number = 0;
    if (!absl::SimpleAtoi(draft_tokens, &number)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--draft_tokens is \"", draft_tokens,
                       "\"; allowed are auto or a number"));
    }
    settings.session.draft_tokens = number;
  }
  settings.session.lookup = absl::GetFlag(FLAGS_lookup);
  const std::string rollback = absl::GetFlag(FLAGS_rollback);
  if (rollback == "slots") {
    settings.session.rollback = deltaedge::Rollback::kSlots;
  } else if (rollback != "journal") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--rollback is \"", rollback, "\"; allowed are journal, slots"));
  }
  deltaedge::SamplingOptions& sampling = settings.generate.sampling;
  sampling.temperature = absl::GetFlag(FLAGS_temperature);
  sampling.top_k = absl::GetFlag(FLAGS_top_k);
  sampling.top_p = absl::GetFlag(FLAGS_top_p);
  sampling.min_p = absl::GetFlag(FLAGS_min_p);
  sampling.seed = absl::GetFlag(FLAGS_seed);
  sampling.repetition_penalty = absl::GetFlag(FLAGS_repetition_penalty);
  sampling.presence_penalty = absl::GetFlag(FLAGS_presence_penalty);
  sampling.frequency_penalty = absl::GetFlag(FLAGS_frequency_penalty);
  settings.generate.stop_texts = absl::GetFlag(FLAGS_stop);
  const std::string thinking = absl::GetFlag(FLAGS_thinking);
  if (thinking == "on") {
    settings.render.thinking = deltaedge::Thinking::kOn;
  } else if (thinking == "off") {
    settings.render.thinking = deltaedge::Thinking::kOff;
  } else if (thinking != "auto") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--thinking is \"", thinking, "\"; allowed are on, off, auto"));
  }
  for (const absl::Status& status :
       {About("--threads", Validate(settings.engine)),
        Validate(settings.session), Validate(settings.generate)}) {
    if (!status.ok()) return status;
  }
  return settings;
}

// What `later` counted beyond `earlier`.
SessionStats Difference(SessionStats later, const SessionStats& earlier) {
  later.prefill_tokens -= earlier.prefill_tokens;
  later.delivered_tokens -= earlier.delivered_tokens;
  later.discarded -= earlier.discarded;
  later.steps -= earlier.steps;
  later.draft_steps -= earlier.draft_steps;
  later.drafted -= earlier.drafted;
  later.accepted -= earlier.accepted;
  later.lookup_drafted -= earlier.lookup_drafted;
  later.lookup_accepted -= earlier.lookup_accepted;
  later.plain_by_choice -= earlier.plain_by_choice;
  later.probes -= earlier.probes;
  for (size_t i = 0; i < later.tried_at.size(); ++i) {
    later.tried_at[i] -= earlier.tried_at[i];
    later.accepted_at[i] -= earlier.accepted_at[i];
  }
  later.prefill_time -= earlier.prefill_time;
  later.draft_time -= earlier.draft_time;
  later.verify_time -= earlier.verify_time;
  later.accept_time -= earlier.accept_time;
  return later;
}

// "1 step", "2 steps".
std::string Count(int64_t count, absl::string_view what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

// Who may draft, and how much.
std::string DraftPolicy(const deltaedge::SessionOptions& options,
                        const deltaedge::ModelInfo& info) {
  if (options.draft_tokens == 0) return "none, as asked for";
  const bool model = !options.lookup && info.draft_block > 0;
  if (!model && !options.lookup) {
    return "none: there is no draft model, and no --lookup in the text";
  }
  const std::string source =
      model ? "by the draft model" : "by looking up the text";
  if (options.draft_tokens.has_value()) {
    return absl::StrCat("always ", *options.draft_tokens, " ", source,
                        ", as asked for");
  }
  return absl::StrCat(source, model ? " or by looking up the text" : "",
                      ", as many as pay");
}

// What a step drafted, and why.
std::string Describe(const deltaedge::DraftChoice& choice) {
  using deltaedge::DraftReason;
  using deltaedge::DraftSource;
  std::string text =
      choice.drafts == 0 ? "no drafts" : Count(choice.drafts, "draft");
  if (choice.source == DraftSource::kModel) text += " by the draft model";
  if (choice.source == DraftSource::kLookup) text += " by looking up the text";
  switch (choice.reason) {
    case DraftReason::kPinned:
      return text + ", as asked for";
    case DraftReason::kBest:
      text += ", for the most tokens a second";
      break;
    case DraftReason::kPlain:
      text += ", which would not pay";
      break;
    case DraftReason::kProbe:
      text += ", to learn whether so many pay";
      break;
    case DraftReason::kMeasure:
      text += ", to learn what a step takes without";
      break;
    case DraftReason::kNoRoom:
      return "no drafts: there was no room, or nothing found";
  }
  if (choice.time > absl::ZeroDuration()) {
    absl::StrAppendFormat(&text, "; expected: %.2f tokens in %.2f ms",
                          choice.tokens,
                          absl::ToDoubleMilliseconds(choice.time));
  }
  if (choice.drafts > 0 && choice.plain_time > absl::ZeroDuration()) {
    absl::StrAppendFormat(&text, ", without drafts 1 in %.2f ms",
                          absl::ToDoubleMilliseconds(choice.plain_time));
  }
  return text;
}

void PrintStats(const Engine& engine, const deltaedge::SessionOptions& options,
                const SessionStats& s) {
  absl::FPrintF(
      stderr,
      "prompt    %d tokens, %.1f tokens/s, first token after %.1f ms\n"
      "decoding  %d tokens, %.1f tokens/s, %s, %s\n",
      s.prefill_tokens, s.prefill_tokens_per_second(),
      absl::ToDoubleMilliseconds(s.time_to_first_token), s.delivered_tokens,
      s.decode_tokens_per_second(), Count(engine.info().threads, "thread"),
      engine.info().cpu_target);
  absl::FPrintF(stderr, "weights   %s\nthreads   %s\n",
                engine.info().packed_weights, engine.info().thread_placement);
  if (absl::GetFlag(FLAGS_temperature) > 0.0f) {
    absl::FPrintF(stderr, "sampling  seed %d\n", s.seed);
  }
  absl::FPrintF(
      stderr,
      "drafts    %d of %d accepted (%.1f %%), %.2f tokens per step in "
      "%d steps, %d discarded\n"
      "          %s\n",
      s.accepted, s.drafted, 100.0 * s.acceptance_rate(), s.tokens_per_step(),
      s.steps, s.discarded, DraftPolicy(options, engine.info()));
  if (s.lookup_drafted > 0 && s.lookup_drafted < s.drafted) {
    absl::FPrintF(stderr, "          %d of %d of them by looking up the text\n",
                  s.lookup_accepted, s.lookup_drafted);
  }
  if (s.plain_by_choice > 0 || s.probes > 0) {
    absl::FPrintF(stderr,
                  "          %s without, as drafts would not have paid; %s to "
                  "learn what pays\n",
                  Count(s.plain_by_choice, "step"), Count(s.probes, "step"));
  }
  if (s.steps > 0 && options.draft_tokens != 0) {
    absl::FPrintF(stderr, "          last step: %s\n", Describe(s.last_choice));
  }
  std::string per_position;
  for (size_t i = 0; i < s.tried_at.size(); ++i) {
    if (s.tried_at[i] == 0) break;
    absl::StrAppendFormat(
        &per_position, " %.2f",
        static_cast<double>(s.accepted_at[i]) / s.tried_at[i]);
  }
  if (!per_position.empty()) {
    absl::FPrintF(stderr, "          accepted at draft 1, 2, ...:%s\n",
                  per_position);
  }
  const absl::Duration all =
      s.prefill_time + s.draft_time + s.verify_time + s.accept_time;
  const auto percent = [all](absl::Duration part) {
    return all == absl::ZeroDuration() ? 0.0
                                       : 100.0 * absl::FDivDuration(part, all);
  };
  absl::FPrintF(stderr,
                "time      %.1f ms: prompt %.1f %%, draft %.1f %%, verify "
                "%.1f %%, accept %.1f %%\n",
                absl::ToDoubleMilliseconds(all), percent(s.prefill_time),
                percent(s.draft_time), percent(s.verify_time),
                percent(s.accept_time));
}

void Say(const absl::Status& status) {
  absl::FPrintF(stderr, "%s: %s\n", absl::StatusCodeToString(status.code()),
                status.message());
}

// Why an answer is not whole, if it is not.
void Explain(FinishReason reason) {
  switch (reason) {
    case FinishReason::kCancelled:
      fputs("(stopped)\n", stderr);
      break;
    case FinishReason::kMaxTokens:
      fputs("(cut at --max_new_tokens)\n", stderr);
      break;
    case FinishReason::kContextFull:
      fputs("(cut: the context is full)\n", stderr);
      break;
    default:
      break;
  }
}

// Prints an answer as it comes: reasoning on standard error, the reply on
// standard output.
class Printer {
 public:
  // `prompt`: what the model answers to. It may have opened the reasoning.
  Printer(const deltaedge::Tokenizer& tokenizer,
          absl::Span<const TokenId> prompt)
      : open_(OneToken(tokenizer, "<think>")),
        close_(OneToken(tokenizer, "</think>")) {
    // The marker, or the marker and a line break.
    for (TokenId id : prompt.last(std::min<size_t>(prompt.size(), 2))) {
      if (id == open_) reasoning_ = true;
    }
  }

  // False if standard output cannot be written.
  bool Print(const TokenEvent& token) {
    if (reasoning_ && token.id == close_) {
      reasoning_ = false;
      reasoned_ = true;
    } else if (at_start_ && token.id == open_) {
      reasoning_ = true;
    } else {
      Print(token.text);
    }
    return !ferror(stdout);
  }

  void Print(absl::string_view text) {
    if (reasoning_) {
      fwrite(text.data(), 1, text.size(), stderr);
      return;
    }
    if (at_start_ && reasoned_) text = absl::StripLeadingAsciiWhitespace(text);
    if (text.empty()) return;
    at_start_ = false;
    fwrite(text.data(), 1, text.size(), stdout);
    fflush(stdout);
  }

 private:
  static std::optional<TokenId> OneToken(const deltaedge::Tokenizer& tokenizer,
                                         absl::string_view text) {
    const auto ids =
        tokenizer.Encode(text, deltaedge::Tokenizer::Special::kAsText);
    if (!ids.ok() || ids->size() != 1) return std::nullopt;
    return ids->front();
  }

  const std::optional<TokenId> open_, close_;
  bool reasoning_ = false;
  bool reasoned_ = false;
  bool at_start_ = true;  // Of the reply.
};

class Chat {
 public:
  Chat(const Settings& settings, const Engine* engine, Session* session)
      : settings_(settings), engine_(engine), session_(session) {}

  // Asks, and prints the answer. A question that cannot be asked is an error
  // and leaves the conversation as it was.
  absl::StatusOr<FinishReason> Ask(const std::string& text) {
    g_interrupted = false;
    std::vector<ChatMessage> messages;
    const bool first = session_->position() == 0;
    if (first && settings_.system.has_value()) {
      messages.push_back({Role::kSystem, *settings_.system});
    }
    messages.push_back({Role::kUser, text});
    const absl::StatusOr<std::vector<TokenId>> ids =
        engine_->chat().RenderAfter(session_->tokens(), messages,
                                    settings_.render);
    if (!ids.ok()) return ids.status();

    const SessionStats before = session_->stats();
    const absl::Status prefill = session_->Prefill(*ids);
    // An interrupt between two calls is known here only.
    if (absl::IsCancelled(prefill) || (prefill.ok() && g_interrupted)) {
      // A system message must be there whole or be sent again.
      if (first) session_->Reset();
      return FinishReason::kCancelled;
    }
    if (!prefill.ok()) return prefill;
    Printer printer(engine_->tokenizer(), *ids);
    const absl::StatusOr<deltaedge::GenerateResult> result =
        session_->Generate(settings_.generate, [&](const TokenEvent& token) {
          return printer.Print(token) && !g_interrupted;
        });
    if (result.ok()) printer.Print(result->tail);
    fputc('\n', stdout);
    if (fflush(stdout) != 0 || ferror(stdout)) {
      return absl::DataLossError("standard output cannot be written");
    }
    if (!result.ok()) return result.status();
    if (absl::GetFlag(FLAGS_stats)) {
      PrintStats(*engine_, settings_.session,
                 Difference(session_->stats(), before));
    }
    return result->reason;
  }

  // Until /quit or the end of the input. Returns the exit status.
  int Converse() {
    const deltaedge::ModelInfo& info = engine_->info();
    absl::FPrintF(stderr,
                  "%s, %s, %s; drafts: %s\n"
                  "/reset forgets the conversation, /stats tells the speed, "
                  "/quit or Ctrl-D leaves, Ctrl-C stops an answer.\n",
                  info.name.empty() ? "model" : info.name,
                  Count(info.threads, "thread"), info.cpu_target,
                  DraftPolicy(settings_.session, info));
    while (true) {
      if (terminal_) fputs("> ", stderr);
      const absl::StatusOr<std::optional<std::string>> line = ReadLine();
      if (absl::IsCancelled(line.status())) {
        fputs("\n(/quit or Ctrl-D leaves)\n", stderr);
        continue;
      }
      if (absl::IsInvalidArgument(line.status())) {
        Say(line.status());
        continue;
      }
      if (!line.ok()) {
        Say(line.status());
        return 1;
      }
      if (!line->has_value()) {
        if (terminal_) fputc('\n', stderr);
        return 0;
      }
      const std::string text(absl::StripAsciiWhitespace(**line));
      if (text.empty()) continue;
      if (text == "/quit" || text == "/exit") return 0;
      if (text == "/reset") {
        session_->Reset();
        fputs("(forgotten)\n", stderr);
      } else if (text == "/stats") {
        PrintStats(*engine_, settings_.session, session_->stats());
      } else if (text[0] == '/') {
        absl::FPrintF(stderr,
                      "no such command: %s; there are /reset, /stats, /quit\n",
                      text);
      } else {
        const absl::StatusOr<FinishReason> reason = Ask(text);
        if (ferror(stdout)) {
          Say(reason.status());
          return 1;
        }
        if (!reason.ok()) {
          Say(reason.status());
          if (absl::IsOutOfRange(reason.status()) && session_->position() > 0) {
            fputs("(/reset makes room)\n", stderr);
          }
        } else {
          Explain(*reason);
        }
      }
    }
  }

 private:
  // More text than any model's context takes.
  static constexpr size_t kMaxLineBytes = 4 << 20;

  // The next line of standard input without its end; nullopt at the end of the
  // input. Cancelled: interrupted, what was typed is gone. InvalidArgument: the
  // line was too long and has been skipped.
  absl::StatusOr<std::optional<std::string>> ReadLine() {
    std::string line;
    bool too_long = false;
    CatchInterrupts(0);
    errno = 0;
    int c;
    while ((c = getc(stdin)) != EOF && c != '\n') {
      if (line.size() < kMaxLineBytes) {
        line.push_back(static_cast<char>(c));
      } else {
        too_long = true;
      }
    }
    const int error = errno;
    CatchInterrupts(SA_RESTART);
    if (c == EOF && ferror(stdin)) {
      clearerr(stdin);
      if (error == EINTR) return absl::CancelledError("interrupted");
      return absl::ErrnoToStatus(error, "standard input cannot be read");
    }
    if (too_long) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the line is too long; ", kMaxLineBytes, " bytes are allowed"));
    }
    if (c == EOF && line.empty()) return std::nullopt;
    return line;
  }

  const Settings& settings_;
  const Engine* const engine_;
  Session* const session_;
  const bool terminal_ = isatty(STDIN_FILENO) != 0;
};

// What cannot become right in the course of a conversation.
absl::Status CheckChat(const Settings& settings, const Engine& engine) {
  if (!engine.chat().available()) {
    return absl::FailedPreconditionError(absl::StrCat(
        settings.files.target, ": the model file has no ",
        engine.info().has_tokenizer ? "chat template" : "tokenizer",
        ", so it cannot chat; convert the checkpoint from a folder that also "
        "has its tokenizer.json and its chat template"));
  }
  const auto question =
      engine.chat().Render({{Role::kUser, ""}}, settings.render);
  if (!question.ok()) return About("--thinking", question.status());
  if (!settings.system.has_value()) return absl::OkStatus();
  const auto with_system = engine.chat().Render(
      {{Role::kSystem, *settings.system}, {Role::kUser, ""}}, settings.render);
  return About("--system", with_system.status());
}

constexpr absl::string_view kUsage =
    "usage: chat [--target FILE.gdn [--draft FILE.gdn]] [--prompt TEXT] "
    "[--stats] ...\n"
    "Talks to a Gated DeltaNet hybrid model, drafting with DFlash.\n";

void PrintHelp() {
  std::map<std::string, const absl::CommandLineFlag*> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (absl::EndsWith(flag->Filename(), "examples/chat/chat.cc")) {
      flags.emplace(name, flag);
    }
  }
  absl::PrintF("%s", kUsage);
  for (const auto& [name, flag] : flags) {
    const std::string value = flag->DefaultValue();
    absl::PrintF("  --%s%s\n      %s\n", name,
                 value.empty() ? "" : absl::StrCat("=", value), flag->Help());
  }
}

int Run(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const absl::string_view word = argv[i];
    if (word != "--help" && word != "-help" && word != "-h") continue;
    // Abseil's own help counts as a failure.
    PrintHelp();
    return fflush(stdout) == 0 ? 0 : 1;
  }
  absl::SetProgramUsageMessage(kUsage);
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    absl::FPrintF(stderr,
                  "%s is not a flag; a question is given with --prompt\n",
                  rest[1]);
    return 2;
  }
  const absl::StatusOr<Settings> settings = ReadFlags(argv[0]);
  if (!settings.ok()) {
    Say(settings.status());
    return 2;
  }
  deltaedge::SetLogSink(
      [](deltaedge::LogLevel level, absl::string_view message) {
        if (level != deltaedge::LogLevel::kWarning) return;
        absl::FPrintF(stderr, "(%s)\n", message);
      });
  const auto engine = Engine::Open(settings->files, settings->engine);
  if (!engine.ok()) {
    Say(engine.status());
    return 1;
  }
  if (absl::Status s = CheckChat(*settings, **engine); !s.ok()) {
    Say(s);
    return 1;
  }
  const auto session = (*engine)->NewSession(settings->session);
  if (!session.ok()) {
    Say(session.status());
    return 1;
  }
  Chat chat(*settings, engine->get(), session->get());
  if (!settings->prompt.has_value()) {
    g_session = session->get();
    const int status = chat.Converse();
    signal(SIGINT, SIG_DFL);
    g_session = nullptr;
    return status;
  }
  // Here Ctrl-C ends the program, as a shell's loop expects.
  const absl::StatusOr<FinishReason> reason = chat.Ask(*settings->prompt);
  if (!reason.ok()) {
    const bool unfit = absl::IsInvalidArgument(reason.status()) ||
                       absl::IsOutOfRange(reason.status());
    Say(unfit ? About("--prompt", reason.status()) : reason.status());
    return 1;
  }
  Explain(*reason);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return Run(argc, argv); }
