// SPDX-License-Identifier: Apache-2.0

// A conversation on a terminal, or one question and its answer. Uses nothing
// but the SDK's public headers.

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/chat_format.h"
#include "engine/engine.h"
#include "engine/options.h"
#include "engine/session.h"
#include "engine/stats.h"
#include "engine/types.h"
#include "tools/cpp/runfiles/runfiles.h"

ABSL_FLAG(
    std::string, target, "",
    "model file (*.gdn); empty: the small dictionary assistant that comes "
    "with this program");
ABSL_FLAG(std::string, draft, "",
          "draft made for --target; empty: none, or the dictionary's own");
ABSL_FLAG(std::optional<std::string>, prompt, std::nullopt,
          "answer this and leave: the answer on standard output, everything "
          "else on standard error; without it, a conversation");
ABSL_FLAG(std::optional<std::string>, system, std::nullopt, "system message");
ABSL_FLAG(std::string, thinking, "auto",
          "on, off, or auto for the model's own habit");
ABSL_FLAG(int32_t, max_new_tokens, 512, "tokens of one answer, at most");
ABSL_FLAG(int32_t, max_context, 0,
          "tokens of the whole conversation, at most; 0: the model's limit");
ABSL_FLAG(std::string, draft_tokens, "auto",
          "tokens drafted per step, or auto; 0: plain decoding. Changes the "
          "speed and nothing else");
ABSL_FLAG(int32_t, threads, 0, "threads; 0: as many as there are");
ABSL_FLAG(bool, stats, false, "print speed and acceptance after each answer");

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

void CatchInterrupts() {
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  // Without SA_RESTART: waiting for a line must notice.
  sigaction(SIGINT, &action, nullptr);
}

struct Settings {
  deltaedge::ModelFiles files;
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

absl::StatusOr<std::string> BundledFile(const char* program, const char* name) {
  using bazel::tools::cpp::runfiles::Runfiles;
  std::string error;
  const std::unique_ptr<Runfiles> runfiles(Runfiles::Create(program, &error));
  std::string path;
  if (runfiles != nullptr) {
    path = runfiles->Rlocation(
        absl::StrCat("deltaedge/examples/chat/model/", name));
  }
  if (path.empty() || access(path.c_str(), R_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(
        "the dictionary assistant's ", name,
        " is not beside this program; start it with `bazel run`, or name a "
        "model with --target"));
  }
  return path;
}

absl::StatusOr<Settings> ReadFlags(const char* program) {
  Settings settings;
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
       {Validate(settings.engine), Validate(settings.session),
        Validate(settings.generate)}) {
    if (!status.ok()) return status;
  }
  return settings;
}

double Percent(absl::Duration part, absl::Duration whole) {
  return whole == absl::ZeroDuration()
             ? 0.0
             : 100.0 * absl::FDivDuration(part, whole);
}

void PrintStats(const Engine& engine, const SessionStats& s) {
  const absl::Duration decode = s.draft_time + s.verify_time + s.accept_time;
  absl::FPrintF(
      stderr,
      "prompt    %d tokens, %.1f tokens/s, first token after %.1f ms\n"
      "decoding  %d tokens, %.1f tokens/s, %d threads, %s\n",
      s.prefill_tokens, s.prefill_tokens_per_second(),
      absl::ToDoubleMilliseconds(s.time_to_first_token), s.delivered_tokens,
      s.decode_tokens_per_second(), engine.info().threads,
      engine.info().cpu_target);
  absl::FPrintF(
      stderr,
      "drafts    %d of %d accepted (%.1f %%), %.2f tokens per step in "
      "%d steps, %d discarded\n",
      s.accepted, s.drafted, 100.0 * s.acceptance_rate(), s.tokens_per_step(),
      s.steps, s.discarded);
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
  absl::FPrintF(stderr,
                "time      draft %.1f %%, verify %.1f %%, accept %.1f %% of "
                "%.1f ms decoding\n",
                Percent(s.draft_time, decode), Percent(s.verify_time, decode),
                Percent(s.accept_time, decode),
                absl::ToDoubleMilliseconds(decode));
}

void Say(const absl::Status& status) {
  absl::FPrintF(stderr, "%s: %s\n", absl::StatusCodeToString(status.code()),
                status.message());
}

class Chat {
 public:
  Chat(const Settings& settings, const Engine* engine, Session* session)
      : settings_(settings), engine_(engine), session_(session) {}

  // Asks and streams the answer to standard output. On an error, what the
  // session held stays.
  absl::StatusOr<FinishReason> Ask(const std::string& text) {
    std::vector<ChatMessage> messages;
    const std::optional<std::string> system = absl::GetFlag(FLAGS_system);
    if (session_->position() == 0 && system.has_value()) {
      messages.push_back({Role::kSystem, *system});
    }
    messages.push_back({Role::kUser, text});
    absl::StatusOr<std::vector<TokenId>> ids = engine_->chat().RenderAfter(
        session_->tokens(), messages, settings_.render);
    if (!ids.ok()) return ids.status();

    g_interrupted = false;
    if (absl::Status s = session_->Prefill(*ids); !s.ok()) return s;
    // A Cancel() between two calls would be forgotten.
    if (g_interrupted) return absl::CancelledError("interrupted");
    absl::StatusOr<deltaedge::GenerateResult> result =
        session_->Generate(settings_.generate, [](const TokenEvent& token) {
          fwrite(token.text.data(), 1, token.text.size(), stdout);
          fflush(stdout);
          return !g_interrupted.load(std::memory_order_relaxed) &&
                 !ferror(stdout);
        });
    if (!result.ok()) return result.status();
    fwrite(result->tail.data(), 1, result->tail.size(), stdout);
    fputc('\n', stdout);
    fflush(stdout);
    if (ferror(stdout)) {
      return absl::DataLossError("standard output cannot be written");
    }
    if (absl::GetFlag(FLAGS_stats)) PrintStats(*engine_, session_->stats());
    return result->reason;
  }

  // Until /quit or the end of the input. Returns the exit status.
  int Converse() {
    const bool terminal = isatty(STDIN_FILENO) != 0;
    absl::FPrintF(stderr,
                  "%s, %d threads, %s%s\n"
                  "/reset forgets the conversation, /stats tells the speed, "
                  "/quit or Ctrl-D leaves, Ctrl-C stops an answer.\n",
                  engine_->info().name.empty() ? "model" : engine_->info().name,
                  engine_->info().threads, engine_->info().cpu_target,
                  engine_->info().draft_block > 0 ? ", with a draft" : "");
    char* line = nullptr;
    size_t capacity = 0;
    while (true) {
      if (terminal) {
        fputs("> ", stderr);
        fflush(stderr);
      }
      errno = 0;
      const ssize_t length = getline(&line, &capacity, stdin);
      if (length < 0) {
        if (errno == EINTR) {
          clearerr(stdin);
          fputs("\n(/quit or Ctrl-D leaves)\n", stderr);
          continue;
        }
        break;
      }
      const std::string text(absl::StripAsciiWhitespace(
          std::string(line, static_cast<size_t>(length))));
      if (text.empty()) continue;
      if (text == "/quit" || text == "/exit") break;
      if (text == "/reset") {
        session_->Reset();
        fputs("(forgotten)\n", stderr);
      } else if (text == "/stats") {
        PrintStats(*engine_, session_->stats());
      } else if (absl::StartsWith(text, "/")) {
        absl::FPrintF(stderr,
                      "no such command: %s; there are /reset, /stats, "
                      "/quit\n",
                      text);
      } else {
        const absl::StatusOr<FinishReason> reason = Ask(text);
        if (!reason.ok()) {
          Say(reason.status());
          if (ferror(stdout)) break;
        } else if (*reason == FinishReason::kCancelled) {
          fputs("(stopped)\n", stderr);
        } else if (*reason == FinishReason::kMaxTokens) {
          fputs("(cut at --max_new_tokens)\n", stderr);
        } else if (*reason == FinishReason::kContextFull) {
          fputs("(the context is full; /reset starts again)\n", stderr);
        }
      }
    }
    free(line);
    return ferror(stdout) ? 1 : 0;
  }

 private:
  const Settings& settings_;
  const Engine* const engine_;
  Session* const session_;
};

int Run(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Talks to a Gated DeltaNet hybrid model, drafting with DFlash.\n"
      "  chat [--target FILE.gdn [--draft FILE.gdn]] [--prompt TEXT] "
      "[--stats]");
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
  const auto engine = Engine::Open(settings->files, settings->engine);
  if (!engine.ok()) {
    Say(engine.status());
    return 1;
  }
  const auto session = (*engine)->NewSession(settings->session);
  if (!session.ok()) {
    Say(session.status());
    return 1;
  }
  g_session = session->get();
  CatchInterrupts();
  Chat chat(*settings, engine->get(), session->get());
  const std::optional<std::string> prompt = absl::GetFlag(FLAGS_prompt);
  if (!prompt.has_value()) {
    const int status = chat.Converse();
    g_session = nullptr;
    return status;
  }
  const absl::StatusOr<FinishReason> reason = chat.Ask(*prompt);
  g_session = nullptr;
  if (!reason.ok()) {
    Say(reason.status());
    return 1;
  }
  // The shell's own number for a program that was interrupted.
  if (*reason == FinishReason::kCancelled) return 128 + SIGINT;
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return Run(argc, argv); }
