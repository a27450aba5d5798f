// SPDX-License-Identifier: Apache-2.0

// write_examples FOLDER: writes the tiny models of tests/engine/model there, as
// target_v1.gdn, draft_v1.gdn, quantised_v2.gdn and moe_v3.gdn. Run it when a
// revision is released; files of older revisions stay as they are.

#include <iostream>
#include <string>

#include "absl/status/status.h"
#include "engine/model/model_contents.h"
#include "tests/engine/model/tiny_models.h"

namespace deltaedge {
namespace testing {
namespace {

absl::Status WriteAll(const std::string& folder) {
  absl::Status status = WriteTinyModel(folder + "/target_v1.gdn", TinyTarget(),
                                       kTinyTargetFingerprint);
  if (!status.ok()) return status;
  status = WriteTinyModel(folder + "/draft_v1.gdn", TinyDraft(),
                          kTinyDraftFingerprint);
  if (!status.ok()) return status;
  const ModelContents wide = TinyWideTarget();
  status = WriteTinyModel(folder + "/quantised_v2.gdn", wide,
                          QuantisedSpecs(wide), kTinyWideFingerprint);
  if (!status.ok()) return status;
  const ModelContents moe = TinyMoeTarget();
  return WriteTinyModel(folder + "/moe_v3.gdn", moe, QuantisedSpecs(moe),
                        kTinyMoeFingerprint);
}

}  // namespace
}  // namespace testing
}  // namespace deltaedge

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: write_examples FOLDER" << std::endl;
    return 2;
  }
  const absl::Status status = deltaedge::testing::WriteAll(argv[1]);
  if (status.ok()) return 0;
  std::cerr << status << std::endl;
  return 1;
}
