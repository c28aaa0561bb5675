/* Regions: the one place that decides which memory a peer may access. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "example.h"

int register_memory(gradrail_transport_context* context, const gradrail_transport_memory* memory,
                    gradrail_transport_region** region, gradrail_transport_key* key, gradrail_transport_text* error) {
  gradrail_transport_region* added = calloc(1, sizeof(*added));
  if (added == NULL) return fail(error, GRADRAIL_TRANSPORT_RESOURCE_EXHAUSTED, "no memory for a region");
  added->key.magic = KEY_MAGIC;
  added->key.region = ++context->next_region;
  if (getrandom(added->key.token, TOKEN_BYTES, 0) != TOKEN_BYTES) {
    free(added);
    return fail(error, GRADRAIL_TRANSPORT_INTERNAL, "getrandom() gave no token for a region");
  }
  added->data = memory->data;
  added->bytes = memory->bytes;
  added->access = memory->access;
  added->next = context->regions;
  context->regions = added;
  memcpy(key->data, &added->key, sizeof(added->key));
  key->bytes = sizeof(added->key);
  *region = added;
  return GRADRAIL_TRANSPORT_OK;
}

void deregister_memory(gradrail_transport_context* context, gradrail_transport_region* region) {
  gradrail_transport_region** place = &context->regions;
  while (*place != region) place = &(*place)->next;
  *place = region->next;
  free(region);
}

int import_region(gradrail_transport_connection* connection, const void* key, size_t key_bytes, uint64_t* region,
                  gradrail_transport_text* error) {
  struct key parsed;
  if (key_bytes == sizeof(parsed)) memcpy(&parsed, key, sizeof(parsed));
  if (key_bytes != sizeof(parsed) || parsed.magic != KEY_MAGIC) {
    return fail(error, GRADRAIL_TRANSPORT_INVALID_ARGUMENT, "not a region key of this transport (%zu bytes)",
                key_bytes);
  }
  struct key* grown = realloc(connection->imported, (connection->imported_count + 1) * sizeof(*grown));
  if (grown == NULL) return fail(error, GRADRAIL_TRANSPORT_RESOURCE_EXHAUSTED, "no memory for an imported region");
  connection->imported = grown;
  connection->imported[connection->imported_count] = parsed;
  *region = connection->imported_count++;
  return GRADRAIL_TRANSPORT_OK;
}

unsigned char* resolve(const gradrail_transport_context* context, const struct frame* frame, uint32_t right) {
  const gradrail_transport_region* region = context->regions;
  while (region != NULL && region->key.region != frame->region) region = region->next;
  if (region == NULL || memcmp(region->key.token, frame->token, TOKEN_BYTES) != 0) return NULL;
  if ((region->access & right) == 0) return NULL;
  if (frame->offset > region->bytes || frame->bytes > region->bytes - frame->offset) return NULL;
  return region->data + frame->offset;
}
