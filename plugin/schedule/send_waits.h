// plugin/schedule/send_waits.h
//
// When a rank may take a send of its own for done without asking: once it has consumed a message that the peer sent in
// or after the action that consumed the rank's.
#pragma once

#include <vector>

#include "plugin/schedule/traffic.h"

namespace dualpipe {

// For each message of `outgoing`, the column of the sender's row whose action is the first to prove that it arrived, or
// `unproven` where none does. `incoming` is the opposite edge; both in the order of sending.
std::vector<int> proof_columns(const std::vector<Message>& outgoing, const std::vector<Message>& incoming,
                               int unproven);

struct SendWait {
  int column;  // The wait stands behind the action in this column.
  Op send;
};

// By column, below `columns`; those of one column stay in their order.
std::vector<SendWait> by_column(const std::vector<SendWait>& waits, int columns);

}  // namespace dualpipe
