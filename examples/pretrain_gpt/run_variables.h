// examples/pretrain_gpt/run_variables.h
//
// Variables by which a program that compares schedules starts the same run again and again:
//   DUALPIPE_SCHEDULE  in the place of pipeline_schedule
//   DUALPIPE_OUTPUT    in the place of output_dir; record_timeline is 5 then, unless it is given, and the run neither
//                      loads a checkpoint nor saves one
// They win over the file and --set, are checked as what they replace, and messages name them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "examples/pretrain_gpt/config_reader.h"
#include "examples/pretrain_gpt/environment.h"

namespace pretrain_gpt {

// After all that is given otherwise.
void read_run_variables(ConfigReader& reader, const GetVariable& get);

// Where DUALPIPE_OUTPUT is set, `config`, whose rules have been checked, gets no folder to save to or to load from:
// runs that are compared begin alike, and leave the checkpoints of the training that they stand for as they are.
void leave_checkpoints_alone(Config& config, const GetVariable& get);

// The variables with their values, "" where they are not set: all ranks have to agree about them.
std::vector<std::pair<std::string, std::string>> run_variable_values(const GetVariable& get);

// What messages about pipeline_schedule and output_dir name: the variable where it is set, else the key.
std::string origin_of_schedule(const GetVariable& get);
std::string origin_of_output(const GetVariable& get);

}  // namespace pretrain_gpt
