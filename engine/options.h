// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_OPTIONS_H_
#define DELTAEDGE_ENGINE_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/drafter.h"
#include "engine/types.h"

namespace deltaedge {

// Plain structs; every default is what most applications want.

// --- Read once, by Engine::Open ----------------------------------------------

struct ModelFiles {
  std::string target;  // Required: a *.gdn file.
  std::string draft;   // A draft made for that target. Empty: none.
};

struct EngineOptions {
  // Threads used by one step, the calling thread included; 256 at most.
  // 0: as many as this process may run on (affinity, cgroup quota).
  int num_threads = 0;

  // How much of the files is checked before the first use. Structure checks
  // (magic, version, bounds, shapes) always run and cost no page reads.
  enum class Verify {
    kStructure,
    kChecksums,  // Also every weight against its checksum: reads all of both.
  };
  Verify verify = Verify::kStructure;
};

// --- Read once, by Engine::NewSession ----------------------------------------

struct SessionOptions {
  // What can change the output: nothing but where it ends.

  // Tokens, prompt and answer together. 0: the model's own limit, which is also
  // the most that is allowed. More context reserves more address space; memory
  // is used as the sequence grows.
  int32_t max_context = 0;

  // What can change speed and memory only.

  // The most tokens drafted per step. Unset: the draft model's block size less
  // one; 15 with a `drafter`; none without either. 0: plain decoding, for which
  // the session then keeps no draft memory at all. More than the draft model
  // can draft, more than 15, or more than none without a drafter:
  // InvalidArgument.
  std::optional<int32_t> draft_tokens;

  // Drafts of the application's own in place of the draft model's.
  std::shared_ptr<Drafter> drafter;

  // Refuse a session that would need more (SessionMemory::total()). 0: no
  // limit.
  int64_t memory_limit_bytes = 0;
};

// --- Read by every Generate
// ----------------------------------------------------

// Decoding is greedy: each token is the one with the highest score, the lowest
// id among equals.
struct GenerateOptions {
  int32_t max_new_tokens = 256;      // At least 1.
  std::vector<TokenId> stop_tokens;  // Besides the model's own.
  bool ignore_model_stop_tokens =
      false;            // For benchmarks: only the ones above.
  bool logits = false;  // Fill TokenEvent::logits.
};

// InvalidArgument names the first bad field, its value and what is allowed.
// What depends on the model is checked where the options are used.
absl::Status Validate(const EngineOptions& options);
absl::Status Validate(const SessionOptions& options);
absl::Status Validate(const GenerateOptions& options);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_OPTIONS_H_
