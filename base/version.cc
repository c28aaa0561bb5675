#include "base/version.h"

namespace gradrail {

std::string build_version() { return GRADRAIL_COMMIT; }

}  // namespace gradrail
