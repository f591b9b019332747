#include "tests/stress/row.h"

#include <nlohmann/json.hpp>

namespace dualpipe::stress {

void print(std::ostream& out, const ResultRow& row) {
  const nlohmann::ordered_json json{{"what", row.what},
                                    {"wanted", row.wanted},
                                    {"measured", row.measured},
                                    {"seed", row.seed},
                                    {"reached", row.reached}};
  out << json.dump() << std::endl;
}

}  // namespace dualpipe::stress
