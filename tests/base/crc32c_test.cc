#include "base/crc32c.h"
