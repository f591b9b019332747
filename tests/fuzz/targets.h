// tests/fuzz/targets.h
//
// What is fuzzed: everything that reads from outside and needs no LibTorch, a target per kind of input. A target reads
// the bytes as a user's file, and where they pass, goes on as the program would. Refusals (ScheduleError, UserError)
// are the right answer to nonsense; any other exception, and whatever a sanitizer says, is a finding.
//
// tests/fuzz/fuzz.cc runs one target under libFuzzer, tests/fuzz/replay.cc all of them over their corpora.
#pragma once

#include <span>
#include <string_view>

namespace dualpipe::fuzz {

void read_schedule_csv(std::string_view bytes);   // A schedule in the text form.
void read_schedule_cell(std::string_view bytes);  // One cell, one row.
void read_cost_file(std::string_view bytes);      // JSON of `dualpipe profile`.
void read_cost_spec(std::string_view bytes);      // --cost forward=1,...
void read_metrics(std::string_view bytes);        // metrics.jsonl
void read_timelines(std::string_view bytes);      // timeline_rank<n>.jsonl, divided by lines that hold "---" alone.
void read_comparison(std::string_view bytes);     // comparison.json, into a page.
void read_host_list(std::string_view bytes);      // SLURM_JOB_NODELIST
void read_environment(std::string_view bytes);    // Variables of a launcher, KEY=VALUE lines.
void read_config(std::string_view bytes);         // YAML of a run.
void read_override(std::string_view bytes);       // --set key=value
void read_layer_times(std::string_view bytes);    // The layers of a cost file, as the trainer reads them.
// PREFIX.idx and PREFIX.bin: the first byte is the size of the .bin, which stands at the end.
void read_indexed_dataset(std::string_view bytes);
void read_manifest(std::string_view bytes);            // manifest.json of a checkpoint.
void read_safetensors_header(std::string_view bytes);  // A whole safetensors file.
void read_rings(std::string_view bytes);  // ring_rank<n>.jsonl, divided as timelines are; into a postmortem.

struct Target {
  std::string_view name;  // Of the function, and of its folder in tests/fuzz/corpus.
  void (*read)(std::string_view bytes);
};

std::span<const Target> targets();

}  // namespace dualpipe::fuzz
