// SPDX-License-Identifier: Apache-2.0

#include <iostream>

#include "engine/engine.h"

absl::Status Answer(const char* target, const char* draft, const char* text) {
  auto engine = deltaedge::Engine::Open({target, draft});
  if (!engine.ok()) return engine.status();
  auto session = (*engine)->NewSession();
  if (!session.ok()) return session.status();
  auto ids = (*engine)->chat().Render({{deltaedge::Role::kUser, text}});
  if (!ids.ok()) return ids.status();
  if (auto status = (*session)->Prefill(*ids); !status.ok()) return status;
  return (*session)
      ->Generate({},
                 [](const deltaedge::TokenEvent& token) {
                   std::cout << token.text << std::flush;
                   return true;
                 })
      .status();
}

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: minimal TARGET.gdn DRAFT.gdn QUESTION\n";
    return 2;
  }
  const absl::Status status = Answer(argv[1], argv[2], argv[3]);
  std::cout << std::endl;
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() && std::cout ? 0 : 1;
}
