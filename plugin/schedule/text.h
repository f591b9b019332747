// plugin/schedule/text.h
//
// The text form of torch.distributed.pipelining: a CSV, one line per rank, cells "<stage><kind><micro-batch>" with
// kinds F B I W SEND_F RECV_F SEND_B RECV_B WAIT_SEND_F WAIT_SEND_B, "<stage><kind>" for UNSHARD RESHARD REDUCE_GRAD
// WAIT_REDUCE_GRAD, and "(0F7;7B3)OVERLAP_F_B". Empty cells are idle time slots: they are read and dropped.
// print_* and parse_* are each other's inverse.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <string_view>

#include "plugin/schedule/lower.h"
#include "plugin/schedule/schedule.h"

namespace dualpipe {

std::string to_string(Kind kind);  // "F", "SEND_F", ...
std::string to_string(const Op& op);
std::string to_string(const Action& action);

// Each throws ScheduleError that quotes the cell, and gives rank (line) and column where there are any, both from 0;
// empty cells count as columns. Spaces around cells, CRLF, a UTF-8 byte order mark and blank lines at the end are let
// pass.
Action parse_action(std::string_view cell);
Row parse_row(std::string_view line);
// A compute-only file. The placement is inferred: a stage on one rank gives Placement::custom (or loop or vee where the
// mapping is one of these); every stage on two ranks, s and P-1-s, with the lower half of the micro-batches on s, gives
// bidirectional. It is the placement that most actions agree with, so that validate() can point at a stray one.
// Communication kinds in the file are dropped: they are lowered anew. `name` becomes Schedule::name.
Schedule parse_schedule(std::string_view csv, std::string name);
Schedule read_schedule(const std::string& path);
// How many cells of the file read_schedule() drops for their kind.
std::size_t count_communication_cells(const std::string& path);

std::string print_row(const Row& row);
void print_rows(std::ostream& out, const std::vector<Row>& rows);  // A line per rank.

// What torch's _PipelineScheduleRuntime._load_csv(format="compute_comms") takes: each rank's lowered row, where every
// send has its WAIT_SEND and every REDUCE_GRAD its WAIT_REDUCE_GRAD, and receives stand right before the action that
// needs them, since torch may run a rank's transfers in the order of the row. Throws ScheduleError for a bidirectional
// schedule, which torch refuses, and for deferred weight gradients.
void print_for_torch(std::ostream& out, const Program& program);

}  // namespace dualpipe
