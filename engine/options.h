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
#include "engine/sampling_options.h"
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
  // 0: one for each processor that this process may run on (affinity, cgroup
  // quota), of processors that differ for each of the fast ones alone. More
  // than it may run on are used, and are far slower, as the threads of a step
  // wait for each other; a warning in the log (log.h) tells.
  int num_threads = 0;

  // Where they run. kBigCores keeps them on the fast ones of the processors
  // that are allowed where Open is called: those of a higher capacity or clock,
  // or all of them where they are alike. What is not allowed stays so. The
  // calling thread is kept there as long as a step takes and runs where it
  // could before in between; a thread that may run on none of them is left
  // alone. A system that refuses is no error; ModelInfo::thread_placement says
  // what was chosen and why.
  enum class Placement {
    kAnywhere,
    kBigCores,
  };
  Placement placement = Placement::kAnywhere;

  // How much of the files is checked before the first use. Structure checks
  // (magic, version, bounds, shapes) always run and read no matrix.
  enum class Verify {
    kStructure,
    kChecksums,  // Also every weight against its checksum: reads all of both.
  };
  Verify verify = Verify::kStructure;

  // Weights are packed for this processor before they are used, which takes a
  // second for each GB or two, and memory beside the model file's pages. Packed
  // weights of a model of more than 64 MiB are therefore kept in a file,
  // FILE.gdn to FILE.gdn.packed, and mapped at the next start: instant, read as
  // needed, and shared between processes. The file is as large as the model,
  // made anew when model, processor or library change, and never needed: where
  // it cannot be read or written, weights are packed in memory. Those of models
  // with experts, of which a token needs few, are mapped from it at the first
  // start too, and packed without memory of their own.
  // ModelInfo::packed_weights says what happened.
  enum class PackedWeights {
    kFile,
    kMemory,  // Make no file and look for none.
  };
  PackedWeights packed_weights = PackedWeights::kFile;
  // Where such files are, of models of any size: a folder. In one that does not
  // exist there are none, as above. Files take the models' names, so models of
  // the same name want a folder each. Empty: beside the model files.
  std::string packed_folder = "";

  // Whether memory that every step reads from end to end, weights and recurrent
  // states, is asked for in pages of 2 MiB. It is a wish, which the system
  // grants where it can: on a virtual machine steps then take a fifth less.
  // False for a device that is short of memory, whose system would otherwise
  // move pages about to make room for large ones.
  bool huge_pages = true;
};

// --- Read once, by Engine::NewSession ----------------------------------------

struct SessionOptions {
  // What can change the output: nothing but where it ends.

  // Tokens, prompt and answer together. 0: the model's own limit, which is also
  // the most that is allowed. More context reserves more address space; memory
  // is used as the sequence grows.
  int32_t max_context = 0;

  // What can change speed and memory only.

  // Tokens drafted per step. Unset: chosen before every step so as to make the
  // most tokens per second, from none to the draft model's block size less one
  // (15 with a `drafter` or `lookup`), by what steps take on this machine and
  // how many drafts were right lately; SessionStats::last_choice says what and
  // why. A number: always that many, as far as there is room. 0: plain
  // decoding, for which the session then keeps no draft memory at all. More
  // than the draft model can draft, more than 15, or more than none without
  // anything to draft with: InvalidArgument.
  std::optional<int32_t> draft_tokens;

  // Drafts of the application's own in place of the draft model's.
  std::shared_ptr<Drafter> drafter;

  // Drafts from the text itself in place of a model's: what came after the last
  // tokens where they stood before. Needs no draft file and hardly any memory;
  // pays where answers quote or repeat. Not together with a `drafter`. With
  // draft_tokens unset, a session with another source also uses it where it
  // promises more.
  bool lookup = false;

  // How drafts in vain are taken back.
  Rollback rollback = Rollback::kJournal;

  // Refuse a session that would need more (SessionMemory::total()). 0: no
  // limit.
  int64_t memory_limit_bytes = 0;
};

// --- Read by every Generate
// ----------------------------------------------------

struct GenerateOptions {
  // At least 1.
  int32_t max_new_tokens = 256;
  // How tokens are picked. The defaults are greedy decoding.
  SamplingOptions sampling;
  // Tokens that end the answer, besides the model's own.
  std::vector<TokenId> stop_tokens;
  // Texts that end the answer: valid UTF-8, not empty, at most 64 of at most
  // 1024 bytes. What matches one is never delivered as text, not even a part
  // of it: text that may become a match is held back until it is known, and
  // comes as GenerateResult::tail if the answer ends before. The tokens of the
  // match belong to the sequence like any others, up to the one that completes
  // it, whose event carries the text before the match. Of several texts the
  // first to be complete counts, the longest of those that are complete at
  // once. The prompt is not looked at.
  std::vector<std::string> stop_texts;
  // For benchmarks: only the stop tokens above.
  bool ignore_model_stop_tokens = false;
  // Fill TokenEvent::logits.
  bool logits = false;
};

// InvalidArgument names the first bad field, its value and what is allowed.
// What depends on the model is checked where the options are used.
absl::Status Validate(const EngineOptions& options);
absl::Status Validate(const SessionOptions& options);
absl::Status Validate(const SamplingOptions& options);
absl::Status Validate(const GenerateOptions& options);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_OPTIONS_H_
