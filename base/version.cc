#include "base/version.h"

namespace gradrail {

std::string build_version() { return "gradrail " GRADRAIL_VERSION " " GRADRAIL_COMMIT; }

std::string build_commit() { return GRADRAIL_COMMIT; }

}  // namespace gradrail
