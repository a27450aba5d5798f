// SPDX-License-Identifier: Apache-2.0

#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "engine/base/affinity.h"
#include "engine/base/fp_mode.h"
#include "engine/base/huge_page_arena.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/engine_impl.h"
#include "engine/graph/target_sequence.h"
#include "engine/ops/cpu_target.h"
#include "engine/ops/linear.h"
#include "engine/ops/packed_cache.h"
#include "engine/ops/row_check.h"
#include "engine/spec/adaptive_drafter.h"
#include "engine/spec/custom_drafter.h"
#include "engine/spec/dflash_drafter.h"
#include "engine/spec/lookup_drafter.h"
#include "engine/text/bpe_tokenizer.h"

namespace deltaedge {

namespace {

// Stands in for the tokenizer of a model file that has none.
class NoTokenizer : public Tokenizer {
 public:
  explicit NoTokenizer(int32_t vocab_size) : vocab_size_(vocab_size) {}

  absl::StatusOr<std::vector<TokenId>> Encode(absl::string_view,
                                              Special) const override {
    return Missing();
  }
  absl::StatusOr<absl::string_view> Bytes(TokenId) const override {
    return Missing();
  }
  bool IsSpecial(TokenId) const override { return false; }
  int32_t vocab_size() const override { return vocab_size_; }

 private:
  static absl::Status Missing() {
    return absl::FailedPreconditionError(
        "the model file has no tokenizer; use token ids");
  }

  const int32_t vocab_size_;
};

absl::StatusOr<std::unique_ptr<ModelFile>> OpenFile(
    const std::string& path, ModelFile::Kind kind,
    const EngineOptions& options) {
  DELTAEDGE_ASSIGN_OR_RETURN(
      auto file,
      ModelFile::Open(path, options.verify == EngineOptions::Verify::kChecksums
                                ? ModelFile::Verify::kChecksums
                                : ModelFile::Verify::kStructure));
  if (file->kind() != kind) {
    return absl::InvalidArgumentError(
        kind == ModelFile::Kind::kTarget
            ? absl::StrCat("'", path,
                           "': a draft; ModelFiles::target wants a target")
            : absl::StrCat("'", path,
                           "': a target; ModelFiles::draft wants a draft"));
  }
  return file;
}

// From the file's tables. Errors do not name the file.
absl::Status MakeTexts(const ModelFile& file,
                       std::unique_ptr<Tokenizer>* tokenizer,
                       std::unique_ptr<ChatFormat>* chat) {
  if (file.tokenizer().has_value()) {
    DELTAEDGE_ASSIGN_OR_RETURN(*tokenizer, MakeBpeTokenizer(*file.tokenizer()));
  } else {
    *tokenizer = std::make_unique<NoTokenizer>(file.target_config().vocab_size);
  }
  std::unique_ptr<const ChatTable> table;
  if (file.chat().has_value()) {
    table = std::make_unique<ChatTable>(*file.chat());
  }
  DELTAEDGE_ASSIGN_OR_RETURN(
      *chat, ChatFormat::Make(tokenizer->get(), std::move(table)));
  return absl::OkStatus();
}

// Smaller models are packed before a file is found.
constexpr int64_t kMinPackedFileBytes = int64_t{64} << 20;

std::string PackedPath(const std::string& model, const std::string& folder) {
  if (folder.empty()) return absl::StrCat(model, ".packed");
  const size_t slash = model.rfind('/');
  return absl::StrCat(
      folder, "/", slash == std::string::npos ? model : model.substr(slash + 1),
      ".packed");
}

absl::Status WithPath(const absl::Status& status, const std::string& path) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("'", path, "': ", status.message()));
}

// Calls `make` to create all products of `file`, the same ones in the same
// order each time, with packed weights from a file or such that there is one
// the next time. What it made before is gone when it makes them again. `*cache`
// gets what was mapped, `*how` what happened.
absl::Status MakeProducts(
    const ModelFile& file, const std::string& path,
    const EngineOptions& engine_options, LinearOptions options,
    absl::FunctionRef<absl::Status(const LinearOptions&)> make,
    std::unique_ptr<PackedCache>* cache, std::string* how) {
  const auto make_with = [&](PackedPieces* packed) {
    options.packed = packed;
    options.arena = std::make_shared<HugePageArena>(engine_options.huge_pages);
    return WithPath(make(options), path);
  };
  if (engine_options.packed_weights == EngineOptions::PackedWeights::kMemory) {
    *how = "packed in memory, as asked for";
    return make_with(nullptr);
  }
  if (engine_options.packed_folder.empty() &&
      file.weight_bytes() < kMinPackedFileBytes) {
    *how = "packed in memory: small enough for that at every start";
    return make_with(nullptr);
  }
  const std::string packed_path =
      PackedPath(path, engine_options.packed_folder);
  const std::string key =
      absl::StrCat("model ", file.identity(), " packing ", PackingIdentity());
  // Most experts rest most of the time: they are packed into the file's own
  // pages, and used from there at the first start as at later ones. Other
  // weights are faster in huge pages, which a file that was just written does
  // not have.
  const bool experts = file.target_config().moe.experts > 0;
  const PackedCache::Use use = experts || !engine_options.huge_pages
                                   ? PackedCache::Use::kSome
                                   : PackedCache::Use::kAll;
  absl::StatusOr<std::unique_ptr<PackedCache>> found = PackedCache::Open(
      packed_path, key,
      engine_options.verify == EngineOptions::Verify::kChecksums
          ? PackedCache::Verify::kChecksums
          : PackedCache::Verify::kStructure,
      use);
  absl::Status why = found.status();
  if (found.ok()) {
    PackedPieces pieces(found->get());
    why = make_with(&pieces);
    if (why.ok()) {
      *cache = *std::move(found);
      *how = absl::StrCat("mapped from ", packed_path);
      return absl::OkStatus();
    }
    if (!absl::IsDataLoss(why)) return why;
  }
  absl::StatusOr<std::unique_ptr<PackedCacheWriter>> writer =
      PackedCacheWriter::Create(packed_path, key);
  absl::Status written = writer.status();
  if (writer.ok()) {
    PackedPieces pieces(writer->get(), /*in_file=*/experts);
    const absl::Status made = make_with(&pieces);
    written = pieces.status();
    // Products of experts are not made where there is no room in the file.
    if (!made.ok() && (written.ok() || !experts)) return made;
    if (written.ok()) written = (*writer)->Commit();
  }
  if (experts && written.ok()) {
    // The products that were made first go before the writer does, whose memory
    // they are in.
    found = PackedCache::Open(packed_path, key, PackedCache::Verify::kStructure,
                              use);
    written = found.status();
  }
  if (experts && written.ok()) {
    PackedPieces pieces(found->get());
    DELTAEDGE_RETURN_IF_ERROR(make_with(&pieces));
    *cache = *std::move(found);
    *how = absl::StrCat("packed into ", packed_path, " (", why.message(),
                        ") and mapped from there");
    Log(LogLevel::kInfo, absl::StrCat("weights of ", path, ": ", *how));
    return absl::OkStatus();
  }
  if (experts || !writer.ok()) {
    DELTAEDGE_RETURN_IF_ERROR(make_with(nullptr));
  }
  *how = written.ok()
             ? absl::StrCat("packed in memory (", why.message(),
                            ") and written to ", packed_path)
             : absl::StrCat("packed in memory; no file: ", written.message());
  Log(written.ok() ? LogLevel::kInfo : LogLevel::kWarning,
      absl::StrCat("weights of ", path, ": ", *how));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Open(
    const ModelFiles& files, const EngineOptions& options) {
  DELTAEDGE_RETURN_IF_ERROR(Validate(options));
  DELTAEDGE_RETURN_IF_ERROR(ApplyCpuTargetEnvironment());
  if (files.target.empty()) {
    return absl::InvalidArgumentError("ModelFiles::target is empty");
  }
  auto impl = std::make_shared<EngineImpl>();
  impl->huge_pages = options.huge_pages;
  DELTAEDGE_ASSIGN_OR_RETURN(
      impl->target_file,
      OpenFile(files.target, ModelFile::Kind::kTarget, options));
  const TargetConfig& config = impl->target_file->target_config();
  std::vector<int32_t> taps;
  if (!files.draft.empty()) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        impl->draft_file,
        OpenFile(files.draft, ModelFile::Kind::kDraft, options));
    DELTAEDGE_RETURN_IF_ERROR(CheckPair(*impl->target_file, *impl->draft_file));
    taps = impl->draft_file->draft_config().target_layers;
  }

  ModelInfo& info = impl->info;
  info.has_tokenizer = impl->target_file->tokenizer().has_value();
  if (const absl::Status status =
          MakeTexts(*impl->target_file, &impl->tokenizer, &impl->chat);
      !status.ok()) {
    return WithPath(status, files.target);
  }

  DELTAEDGE_ASSIGN_OR_RETURN(
      impl->pool, ThreadPool::Create(
                      options.num_threads,
                      options.placement == EngineOptions::Placement::kBigCores
                          ? ThreadPool::Placement::kBigCores
                          : ThreadPool::Placement::kAnywhere));
  {
    const ScopedAffinity affinity(impl->pool->cpus());
    const ScopedFpMode fp_mode;
    absl::MutexLock lock(&impl->step_mutex);
    const pthreadpool_t pool = impl->pool->get();
    std::vector<WeightType> types = impl->target_file->weight_types();
    if (impl->draft_file != nullptr) {
      const std::vector<WeightType> more = impl->draft_file->weight_types();
      types.insert(types.end(), more.begin(), more.end());
    }
    DELTAEDGE_ASSIGN_OR_RETURN(const LinearOptions linear_options,
                               FindLinearOptions(types, pool));
    DELTAEDGE_RETURN_IF_ERROR(MakeProducts(
        *impl->target_file, files.target, options, linear_options,
        [&](const LinearOptions& with) ABSL_NO_THREAD_SAFETY_ANALYSIS {
          impl->target = nullptr;
          absl::StatusOr<std::unique_ptr<TargetModel>> made =
              MakeTargetModel(config, impl->target_file->target_weights(), taps,
                              EngineImpl::kChunkRows, with, pool);
          if (made.ok()) impl->target = *std::move(made);
          return made.status();
        },
        &impl->packed_target, &info.packed_weights));
    int64_t tap_floats = 0;
    if (impl->draft_file != nullptr) {
      tap_floats = static_cast<int64_t>(taps.size()) * config.hidden_size;
      std::string how;
      DELTAEDGE_RETURN_IF_ERROR(MakeProducts(
          *impl->draft_file, files.draft, options, linear_options,
          [&](const LinearOptions& with) ABSL_NO_THREAD_SAFETY_ANALYSIS {
            impl->draft = nullptr;
            absl::StatusOr<std::unique_ptr<DraftModel>> made =
                DraftModel::Create(impl->draft_file->draft_config(),
                                   impl->draft_file->draft_weights(),
                                   impl->target.get(), EngineImpl::kChunkRows,
                                   with, pool);
            if (made.ok()) impl->draft = *std::move(made);
            return made.status();
          },
          &impl->packed_draft, &how));
    }
    DELTAEDGE_ASSIGN_OR_RETURN(
        impl->stepper, Stepper::Create(impl->target.get(), tap_floats,
                                       kMaxBlockRows, options.huge_pages));
  }
  // Everything but the embedding table and the small tensors has been packed.
  impl->target_file->EvictWeights();
  if (impl->draft_file != nullptr) impl->draft_file->EvictWeights();

  info.name = config.name;
  info.vocab_size = config.vocab_size;
  info.max_context = config.max_context;
  info.weight_bytes = impl->target_file->weight_bytes();
  if (impl->draft_file != nullptr) {
    info.weight_bytes += impl->draft_file->weight_bytes();
    info.draft_block = impl->draft_file->draft_config().block_size;
  }
  info.threads = impl->pool->threads();
  info.thread_placement = impl->pool->description();
  info.cpu_target = CpuTargetName();
  Log(LogLevel::kInfo,
      absl::StrCat("opened ", files.target,
                   files.draft.empty() ? "" : " with draft ", files.draft, ": ",
                   info.thread_placement, ", kernels for ", info.cpu_target));
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::Engine(std::shared_ptr<EngineImpl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

absl::StatusOr<EngineImpl::Limits> EngineImpl::Resolve(
    const SessionOptions& options) const {
  DELTAEDGE_RETURN_IF_ERROR(Validate(options));
  Limits limits;
  if (options.max_context > info.max_context) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_context is ", options.max_context,
                     "; the model was made for at most ", info.max_context));
  }
  limits.max_context =
      options.max_context == 0 ? info.max_context : options.max_context;
  limits.source = options.drafter != nullptr ? DraftSource::kCustom
                  : options.lookup           ? DraftSource::kLookup
                  : info.draft_block > 0     ? DraftSource::kModel
                                             : DraftSource::kNone;
  const int32_t most = limits.source == DraftSource::kNone ? 0
                       : limits.source == DraftSource::kModel
                           ? info.draft_block - 1
                           : kMaxBlockRows - 1;
  limits.draft_tokens = options.draft_tokens.value_or(most);
  if (limits.draft_tokens > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "draft_tokens is ", limits.draft_tokens,
        most == 0
            ? "; the engine has no draft model, and the session neither a "
              "drafter nor lookup"
            : absl::StrCat("; at most ", most, " can be drafted")));
  }
  if (limits.draft_tokens == 0) limits.source = DraftSource::kNone;
  limits.lookup = limits.source == DraftSource::kLookup ||
                  (limits.source != DraftSource::kNone &&
                   !options.draft_tokens.has_value());
  limits.rollback = options.rollback;
  return limits;
}

absl::StatusOr<std::unique_ptr<BlockDrafter>> EngineImpl::MakeDrafter(
    const SessionOptions& options, const Limits& limits) {
  std::unique_ptr<BlockDrafter> drafter;
  std::unique_ptr<LookupDrafter> lookup;
  if (limits.lookup) {
    DELTAEDGE_ASSIGN_OR_RETURN(lookup,
                               LookupDrafter::Create(limits.max_context));
  }
  switch (limits.source) {
    case DraftSource::kNone:
      return std::make_unique<NullDrafter>();
    case DraftSource::kCustom:
      drafter = std::make_unique<CustomDrafter>(options.drafter);
      break;
    case DraftSource::kModel: {
      absl::MutexLock lock(&step_mutex);
      DELTAEDGE_ASSIGN_OR_RETURN(
          drafter, DFlashDrafter::Create(draft.get(), limits.max_context));
      break;
    }
    case DraftSource::kLookup:
      if (options.draft_tokens.has_value()) return lookup;
      break;
  }
  if (options.draft_tokens.has_value()) return drafter;
  absl::MutexLock lock(&step_mutex);
  return std::make_unique<AdaptiveDrafter>(
      std::move(drafter), limits.source, &draft_histories[limits.source],
      std::move(lookup), &draft_histories[DraftSource::kLookup]);
}

namespace {

// The engines whose steps this thread is inside of, the innermost first: a
// drafter may use another engine, whose drafter may use yet another.
class Stepping;
thread_local const Stepping* stepping = nullptr;

class Stepping {
 public:
  explicit Stepping(const EngineImpl* engine)
      : engine_(engine), outer_(stepping) {
    stepping = this;
  }
  ~Stepping() { stepping = outer_; }
  Stepping(const Stepping&) = delete;
  Stepping& operator=(const Stepping&) = delete;

  const EngineImpl* engine() const { return engine_; }
  const Stepping* outer() const { return outer_; }

 private:
  const EngineImpl* const engine_;
  const Stepping* const outer_;
};

}  // namespace

absl::Status EngineImpl::CheckOutsideStep() const {
  for (const Stepping* step = stepping; step != nullptr; step = step->outer()) {
    if (step->engine() != this) continue;
    return absl::FailedPreconditionError(
        "called from inside Drafter::Propose: steps of an engine's sessions "
        "take turns, and this is part of one");
  }
  return absl::OkStatus();
}

void EngineImpl::Step(absl::Span<StepItem> items) {
  absl::MutexLock lock(&step_mutex);
  const ScopedAffinity affinity(pool->cpus());
  const Stepping step(this);
  stepper->Step(items);
}

void EngineImpl::Rest() {
  // Another session is at work: then there is no rest.
  if (!step_mutex.TryLock()) return;
  pool->Rest();
  step_mutex.Unlock();
}

absl::StatusOr<SessionMemory> EngineImpl::EstimateMemory(
    const SessionOptions& options) const {
  DELTAEDGE_ASSIGN_OR_RETURN(const Limits limits, Resolve(options));
  const TargetConfig& config = target_file->target_config();
  SessionMemory memory;
  memory.kv_bytes = TargetKvShape(config, limits.max_context).bytes();
  memory.recurrent_bytes =
      TargetRecurrentShape(config, 1 + limits.draft_tokens, limits.rollback)
          .bytes();
  if (limits.source == DraftSource::kModel) {
    memory.draft_bytes =
        DFlashContext::Bytes(draft_file->draft_config(), limits.max_context);
  }
  if (limits.lookup) {
    memory.draft_bytes += LookupDrafter::Bytes(limits.max_context);
  }
  memory.score_bytes = int64_t{1 + limits.draft_tokens} * config.vocab_size *
                       static_cast<int64_t>(sizeof(float));
  memory.token_bytes =
      limits.max_context * static_cast<int64_t>(sizeof(TokenId));
  return memory;
}

absl::StatusOr<std::unique_ptr<Session>> Engine::NewSession(
    const SessionOptions& options) const {
  return EngineImpl::NewSession(impl_, options);
}

absl::StatusOr<std::vector<absl::Status>> Engine::StepMany(
    absl::Span<Session* const> sessions) const {
  return impl_->StepMany(sessions);
}

absl::StatusOr<SessionMemory> Engine::EstimateMemory(
    const SessionOptions& options) const {
  return impl_->EstimateMemory(options);
}

const ModelInfo& Engine::info() const { return impl_->info; }
const Tokenizer& Engine::tokenizer() const { return *impl_->tokenizer; }
const ChatFormat& Engine::chat() const { return *impl_->chat; }

}  // namespace deltaedge
