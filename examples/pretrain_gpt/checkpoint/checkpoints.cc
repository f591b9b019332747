#include "examples/pretrain_gpt/checkpoint/checkpoints.h"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <set>
#include <utility>

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"
#include "examples/pretrain_gpt/checkpoint/checkpoint_folder.h"
#include "examples/pretrain_gpt/checkpoint/fill_pieces.h"
#include "examples/pretrain_gpt/checkpoint/match.h"
#include "examples/pretrain_gpt/checkpoint/outcome.h"

namespace pretrain_gpt {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kSavePatience{1800};
constexpr std::chrono::seconds kBehindTheWatch{60};  // Which says whom the others wait for.

RankExchange exchange_over(const TrainContext& context, const c10::intrusive_ptr<c10d::Store>& store,
                           const std::string& prefix, std::function<void(bool waits)> set_waits) {
  return RankExchange(c10::make_intrusive<c10d::PrefixStore>("checkpoint/" + prefix, store), context.parallel.rank(),
                      context.parallel.world_size(), save_patience(context.config) + kBehindTheWatch,
                      std::move(set_waits));
}

// A master that is the parameter once more is not saved.
std::vector<HeldBox> boxes_to_save(const std::vector<HeldPiece>& pieces) {
  std::vector<HeldBox> boxes;
  for (const HeldPiece& piece : pieces) {
    if (!piece.is_copy) {
      boxes.push_back(piece.place);
    }
  }
  return boxes;
}

std::vector<std::string> names_of(const std::vector<std::vector<HeldBox>>& by_rank) {
  std::set<std::string> names;
  for (const std::vector<HeldBox>& held : by_rank) {
    for (const HeldBox& box : held) {
      names.insert(box.name);
    }
  }
  return {names.begin(), names.end()};
}

std::vector<HeldPiece> weights_of(const std::vector<HeldPiece>& pieces) {
  std::vector<HeldPiece> weights;
  std::copy_if(pieces.begin(), pieces.end(), std::back_inserter(weights),
               [](const HeldPiece& piece) { return piece.is_weight; });
  return weights;
}

bool are_one_folder(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return a == b || fs::equivalent(a, b, error);
}

}  // namespace

std::chrono::seconds save_patience(const Config& config) {
  return std::max(std::chrono::seconds(config.step_patience()), kSavePatience);
}

Checkpoints::Checkpoints(Run run) : run_(std::move(run)) {
  if (config().save.empty() && config().load.empty()) {
    return;
  }
  exchange_.emplace(exchange_over(run_.context, run_.context.store, "main", run_.set_waits));
  held_.emplace(run_.chunks, run_.optimizer, run_.context.parallel);
  exchange_plan();
}

Manifest Checkpoints::base_manifest() const {
  Manifest manifest;
  manifest.seed = config().seed;
  manifest.model = model_settings(config());
  manifest.data = data_settings(config(), run_.num_tokens);
  manifest.layout = layout_settings(config());
  return manifest;
}

void Checkpoints::exchange_plan() {
  std::vector<std::vector<HeldBox>> by_rank;
  for (const std::string& text : exchange_->gather(print_held(boxes_to_save(held_->pieces())))) {
    by_rank.push_back(parse_held(text));
  }
  names_ = names_of(by_rank);
  if (!config().save.empty()) {
    make_writer(by_rank);
  }
}

void Checkpoints::make_writer(const std::vector<std::vector<HeldBox>>& by_rank) {
  Manifest base = base_manifest();
  std::vector<bool> writes;
  std::vector<std::string> shares;
  if (exchange_->is_first()) {
    const std::vector<std::vector<std::size_t>> plan = divide_writing(by_rank);
    base.tensors = planned_tensors(by_rank, plan);
    for (const std::vector<std::size_t>& indices : plan) {
      writes.push_back(!indices.empty());
      shares.push_back(print_indices(indices));
    }
  }
  std::vector<HeldPiece> saved, mine;
  std::copy_if(held_->pieces().begin(), held_->pieces().end(), std::back_inserter(saved),
               [](const HeldPiece& piece) { return !piece.is_copy; });
  for (const std::size_t index : parse_indices(exchange_->scatter(shares))) {
    mine.push_back(saved.at(index));
  }
  snapshot_.emplace(std::move(mine), config().async_save);
  RankExchange exchange =
      exchange_over(run_.context, run_.store, "save", [this](bool waits) { set_saver_waits(waits); });
  writer_.emplace(config().save, config().checkpoints_to_keep, std::move(exchange), std::move(base), std::move(writes),
                  snapshot_->forms());
}

TrainingPosition Checkpoints::load() {
  if (!exchange_) {
    return {};
  }
  std::vector<std::int64_t> passed_over;
  const std::optional<FoundCheckpoint> found = find(passed_over);
  TrainingPosition position;
  if (found) {
    agree([&] { fill_from(*found); });
    if (!config().finetune) {
      position = {found->manifest.iteration, found->manifest.consumed_samples};
      saved_ = position;
    }
    run_.say(fmt::format("loaded {}: iteration {}, {} consumed samples{}", found->folder.string(),
                         found->manifest.iteration, found->manifest.consumed_samples,
                         config().finetune ? "; its weights alone are used" : ""));
  }
  agree([&] { prepare_save_folder(position.iteration, passed_over); });
  return position;
}

std::optional<FoundCheckpoint> Checkpoints::find(std::vector<std::int64_t>& passed_over) {
  if (config().load.empty()) {
    return std::nullopt;
  }
  CheckpointSearch search = find_checkpoint(*exchange_, config().load, config().ckpt_step);
  for (const std::string& note : search.notes) {
    run_.say(note);
  }
  if (!search.found && config().exit_on_missing_checkpoint) {
    throw CheckpointError("load", fmt::format("must be a folder with a checkpoint, got none in {}; for example "
                                              "exit_on_missing_checkpoint: false, which begins anew",
                                              config().load));
  }
  if (!search.found) {
    run_.say(fmt::format("no checkpoint in {}: training begins anew", config().load));
  }
  passed_over = std::move(search.passed_over);
  return std::move(search.found);
}

void Checkpoints::fill_from(const FoundCheckpoint& found) {
  const std::string origin = (found.folder / kManifestName).string();
  const Manifest& manifest = found.manifest;
  match_model(manifest, model_settings(config()), origin);
  if (!config().finetune) {
    match_data(manifest, data_settings(config(), run_.num_tokens), config().seed, origin);
  }
  const std::vector<HeldPiece> pieces = config().finetune ? weights_of(held_->pieces()) : held_->pieces();
  std::vector<HeldBox> places;
  for (const HeldPiece& piece : pieces) {
    places.push_back(piece.place);
  }
  match_tensors(manifest, places, origin);
  if (exchange_->is_first()) {
    match_names(manifest, names_, origin);
  }
  fill_pieces(found.folder, manifest, pieces);
  if (!config().finetune) {
    held_->give_steps();
  }
}

// Saves to come must be the newest ones.
void Checkpoints::prepare_save_folder(std::int64_t iteration, const std::vector<std::int64_t>& passed_over) const {
  if (config().save.empty() || !exchange_->is_first()) {
    return;
  }
  const fs::path save = config().save;
  remove_leftovers(save);
  for (const std::int64_t other : list_checkpoints(save)) {
    if (other <= iteration) {
      continue;
    }
    const bool is_damaged = std::find(passed_over.begin(), passed_over.end(), other) != passed_over.end();
    if (!is_damaged || !are_one_folder(save, config().load)) {
      throw CheckpointError(
          "save",
          fmt::format("must be a folder without checkpoints behind iteration {}, where this run begins, got {}; "
                      "for example load: {}, or another folder",
                      iteration, checkpoint_path(save, other).string(), save.string()));
    }
    set_aside(save, other);
    run_.say(fmt::format("{} is now {}.damaged", checkpoint_path(save, other).string(),
                         checkpoint_path(save, other).string()));
  }
}

void Checkpoints::agree(const std::function<void()>& work) {
  const std::vector<std::string> outcomes = exchange_->gather(outcome_of([&] {
    work();
    return std::string();
  }));
  take_outcome(exchange_->broadcast(exchange_->is_first() ? outcome_of([&] {
    std::for_each(outcomes.begin(), outcomes.end(), take_outcome);
    return std::string();
  })
                                                          : ""));
}

void Checkpoints::after_step(const TrainingPosition& position) {
  if (under_way_.valid() && under_way_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    collect();
  }
  if (config().save_interval > 0 && position.iteration % config().save_interval == 0) {
    save(position);
  }
}

void Checkpoints::save(const TrainingPosition& position) {
  if (!writer_ || saved_ == position) {
    return;
  }
  const Clock::time_point began = Clock::now();
  collect();
  held_->take_steps();
  snapshot_->take();
  saved_ = position;
  const auto write = [this, position, began](double waited) {
    return writer_->write(position, began, waited, [this](std::size_t index) { return snapshot_->bytes(index); });
  };
  if (config().async_save) {
    const double waited = std::chrono::duration<double>(Clock::now() - began).count();
    under_way_ = std::async(std::launch::async, write, waited);
    return;
  }
  SaveReport report = write(0);
  report.waited = report.seconds;
  run_.say(print_report(report));
}

void Checkpoints::finish() { collect(); }

void Checkpoints::collect() {
  if (!under_way_.valid()) {
    return;
  }
  while (under_way_.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    run_.set_waits(saver_waits_);
  }
  run_.set_waits(false);
  run_.say(print_report(under_way_.get()));
}

// On the main thread, or on one that the main thread may wait for in collect().
void Checkpoints::set_saver_waits(bool waits) {
  if (config().async_save) {
    saver_waits_ = waits;
  } else {
    run_.set_waits(waits);
  }
}

}  // namespace pretrain_gpt
