// SPDX-License-Identifier: Apache-2.0

// write_examples FOLDER: writes the tiny models of tests/engine/model there, as
// target_v1.gdn and draft_v1.gdn. Run it when a revision is released; files of
// older revisions stay as they are.

#include <iostream>
#include <string>

#include "absl/status/status.h"
#include "tests/engine/model/tiny_models.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: write_examples FOLDER" << std::endl;
    return 2;
  }
  const std::string folder = argv[1];
  for (const auto& status :
       {deltaedge::testing::WriteTinyModel(
            folder + "/target_v1.gdn", deltaedge::testing::TinyTarget(),
            deltaedge::testing::kTinyTargetFingerprint),
        deltaedge::testing::WriteTinyModel(
            folder + "/draft_v1.gdn", deltaedge::testing::TinyDraft(),
            deltaedge::testing::kTinyDraftFingerprint)}) {
    if (!status.ok()) {
      std::cerr << status << std::endl;
      return 1;
    }
  }
  return 0;
}
