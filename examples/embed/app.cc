// SPDX-License-Identifier: Apache-2.0

// Asks one question three times: without drafts, with the draft model's, and
// with drafts of the application's own. The answers are the same to the last
// token; what differs is how often the target had to run.

#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace {

using deltaedge::Engine;
using deltaedge::Session;
using deltaedge::SessionOptions;
using deltaedge::TokenEvent;
using deltaedge::TokenId;

// Guesses that what followed the last two tokens before follows them again.
class Echo : public deltaedge::Drafter {
 public:
  void Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
               std::vector<TokenId>* drafts) override {
    const size_t n = sequence.size();
    for (size_t end = n - 1; end >= 2; --end) {
      if (sequence[end - 2] != sequence[n - 2] ||
          sequence[end - 1] != sequence[n - 1]) {
        continue;
      }
      const auto next = sequence.subspan(end, max_drafts);
      drafts->assign(next.begin(), next.end());
      return;
    }
  }
};

// The tokens of the answer. Prints its text if `print`, and always the work.
absl::StatusOr<std::vector<TokenId>> Ask(const Engine& engine,
                                         const SessionOptions& options,
                                         const std::string& name,
                                         const std::string& question,
                                         bool print) {
  auto session = engine.NewSession(options);
  if (!session.ok()) return session.status();
  auto prompt = engine.chat().Render({{deltaedge::Role::kUser, question}});
  if (!prompt.ok()) return prompt.status();
  if (auto status = (*session)->Prefill(*prompt); !status.ok()) return status;
  if (auto status = (*session)->Start({}); !status.ok()) return status;

  std::vector<TokenId> answer;
  while (true) {
    const absl::StatusOr<std::optional<TokenEvent>> token = (*session)->Next();
    if (!token.ok()) return token.status();
    if (!token->has_value()) break;  // finish_reason() tells why.
    answer.push_back((*token)->id);
    if (print) std::cout << (*token)->text << std::flush;
  }
  if (print) std::cout << (*session)->TakeTail() << std::endl;

  const deltaedge::SessionStats stats = (*session)->stats();
  std::cerr << name << ": " << stats.delivered_tokens << " tokens in "
            << stats.steps << " steps, " << stats.accepted << " of "
            << stats.drafted << " drafts accepted\n";
  return answer;
}

absl::Status Run(const std::string& target, const std::string& draft,
                 const std::string& question) {
  const auto engine = Engine::Open({target, draft});
  if (!engine.ok()) return engine.status();

  SessionOptions plain;
  plain.draft_tokens = 0;
  SessionOptions own;
  own.drafter = std::make_shared<Echo>();

  const auto expected = Ask(**engine, plain, "no drafts", question, true);
  if (!expected.ok()) return expected.status();
  for (const auto& [name, options] :
       {std::pair("draft model", SessionOptions()), std::pair("echo", own)}) {
    const auto answer = Ask(**engine, options, name, question, false);
    if (!answer.ok()) return answer.status();
    if (*answer != *expected) {
      return absl::InternalError(std::string(name) + " changed the answer");
    }
  }
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: app TARGET.gdn DRAFT.gdn QUESTION\n";
    return 2;
  }
  const absl::Status status =
      Run(argv[argc - 3], argv[argc - 2], argv[argc - 1]);
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}
