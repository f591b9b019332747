// tests/schedule/reference_lower.h
//
// lower() and least_slots() again, slow and obvious: every question is answered by looking through whole rows. For
// small schedules in tests.
#pragma once

#include "plugin/schedule/lower.h"

namespace dualpipe {

std::vector<Row> reference_lower(const Schedule& schedule, int slots);
// By trying k = 1, 2, ... on a model of in-order channels until every rank reaches its end.
int reference_least_slots(const Schedule& schedule);

}  // namespace dualpipe
