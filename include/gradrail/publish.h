#ifndef GRADRAIL_PUBLISH_H
#define GRADRAIL_PUBLISH_H

#include <stddef.h>
#include <stdint.h>

#include "gradrail/gradrail.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Publishing: a publisher serves versions of the parameters to any number of readers over TCP, without parameter
 * servers (docs/publishing.md). It belongs to any process that has the parameters, such as the chief.
 *
 *   gradrail_publisher_open(&options, tensors, 2, &publisher);
 *   each N steps: gradrail_publisher_publish(publisher, step, arrays, 2);
 *   a reader: gradrail_subscriber_open, gradrail_subscriber_connect, then gradrail_subscriber_next in a loop.
 *
 * Threads   Any thread may use a publisher. A subscriber belongs to one thread at a time. */
typedef struct gradrail_publisher gradrail_publisher;
typedef struct gradrail_subscriber gradrail_subscriber;

/* Initialize with GRADRAIL_PUBLISH_OPTIONS_INIT. A member that is 0 or NULL has its default value. */
typedef struct gradrail_publish_options {
  size_t struct_bytes;
  const char* listen;      /* "host:port", port 0: any; NULL: 127.0.0.1:0 */
  const char* format;      /* bits of an element: "bf16" (default) or "fp32" */
  uint32_t keep;           /* versions from which a reader can continue; 0: 8 */
  uint32_t max_readers;    /* 0: 256 */
  double reader_timeout_s; /* a reader that receives nothing of its version for so long is disconnected; 0: 30 */
  const char* secret_file; /* mode 0600; an address beyond this host needs it, or `insecure` */
  int32_t insecure;        /* 1: no authentication */
} gradrail_publish_options;

/* Initialize with GRADRAIL_SUBSCRIBE_OPTIONS_INIT. */
typedef struct gradrail_subscribe_options {
  size_t struct_bytes;
  const char* address; /* "host:port" of the publisher */
  const char* follow;  /* "newest" (default): skips versions; "each": each version that the publisher still keeps */
  double silence_timeout_s; /* a publisher that sends nothing for so long is lost; 0: 30 */
  const char* secret_file;
  int32_t insecure;
} gradrail_subscribe_options;

#define GRADRAIL_PUBLISH_OPTIONS_INIT \
  { .struct_bytes = sizeof(gradrail_publish_options) }
#define GRADRAIL_SUBSCRIBE_OPTIONS_INIT \
  { .struct_bytes = sizeof(gradrail_subscribe_options) }

GRADRAIL_API gradrail_status gradrail_publisher_open(const gradrail_publish_options* options,
                                                     const gradrail_tensor* tensors, size_t tensor_count,
                                                     gradrail_publisher** publisher);
/* "host:port" of the socket that listens. */
GRADRAIL_API const char* gradrail_publisher_address(const gradrail_publisher* publisher);
/* Copies fp32 arrays, one for each tensor, as a new version. It waits for no reader. `version` must increase. */
GRADRAIL_API gradrail_status gradrail_publisher_publish(gradrail_publisher* publisher, uint64_t version,
                                                        const float* const* arrays, size_t array_count);
/* Counters. The text is valid until the next call of this function by this thread. */
GRADRAIL_API const char* gradrail_publisher_stats_json(gradrail_publisher* publisher);
/* Waits up to `wait_s` until each reader has the last version, and reports the end to all. */
GRADRAIL_API gradrail_status gradrail_publisher_close(gradrail_publisher* publisher, double wait_s);
GRADRAIL_API void gradrail_publisher_free(gradrail_publisher* publisher);

GRADRAIL_API gradrail_status gradrail_subscriber_open(const gradrail_subscribe_options* options,
                                                      gradrail_subscriber** subscriber);
/* Waits until names and shapes have arrived. It connects again until then. After GRADRAIL_DEADLINE_EXCEEDED of this
 * function and of gradrail_subscriber_next, the same call continues. */
GRADRAIL_API gradrail_status gradrail_subscriber_connect(gradrail_subscriber* subscriber, double timeout_s);
/* Valid until gradrail_subscriber_free. NULL: not connected yet. */
GRADRAIL_API const gradrail_tensor* gradrail_subscriber_tensors(const gradrail_subscriber* subscriber,
                                                                size_t* tensor_count);
GRADRAIL_API const char* gradrail_subscriber_format(const gradrail_subscriber* subscriber);
/* The bits of a tensor in the format, row by row. The address stays the same; only gradrail_subscriber_next and
 * gradrail_subscriber_resume change the bits. */
GRADRAIL_API const void* gradrail_subscriber_bits(const gradrail_subscriber* subscriber, size_t tensor_index,
                                                  size_t* bytes);
/* Declares that the reader has these parameters of `version` from an earlier run: it then receives what has changed. */
GRADRAIL_API gradrail_status gradrail_subscriber_resume(gradrail_subscriber* subscriber, uint64_t version,
                                                        const float* const* arrays, size_t array_count);
/* Waits for the next version, verifies its hash and puts it in place. GRADRAIL_ABORTED: the publisher has ended; a
 * further call waits for its next start. GRADRAIL_DATA_LOSS: two versions in a row had a wrong hash. */
GRADRAIL_API gradrail_status gradrail_subscriber_next(gradrail_subscriber* subscriber, double timeout_s,
                                                      uint64_t* version);
/* The hash of the version in place, 64 hexadecimal digits. NULL: there is none. Valid until the next call. */
GRADRAIL_API const char* gradrail_subscriber_hash(gradrail_subscriber* subscriber);
GRADRAIL_API const char* gradrail_subscriber_stats_json(gradrail_subscriber* subscriber);
GRADRAIL_API void gradrail_subscriber_free(gradrail_subscriber* subscriber);

#ifdef __cplusplus
}
#endif

#endif
