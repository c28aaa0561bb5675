/* Plug-ins in C for the loader; one object for each value of TABLE. No function of a refused one may be called. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "gradrail/transport.h"

__attribute__((unused)) static int open_nothing(const gradrail_transport_options* options,
                                                gradrail_transport_context** context, gradrail_transport_text* error) {
  (void)options, (void)context;
  snprintf(error->text, sizeof(error->text), "no device of this kind (load its driver)");
  return GRADRAIL_TRANSPORT_FAILED_PRECONDITION;
}

__attribute__((unused)) static void never(void) { abort(); }

#define FUNCTION(name) .name = (__typeof__(((gradrail_transport_table*)NULL)->name))never
#define REQUIRED                                                                                                   \
  .open = open_nothing, FUNCTION(close), FUNCTION(capabilities), FUNCTION(register_memory),                        \
  FUNCTION(deregister_memory), FUNCTION(listen), FUNCTION(connect), FUNCTION(disconnect), FUNCTION(import_region), \
  FUNCTION(get), FUNCTION(send), FUNCTION(poll), FUNCTION(wait_fd), FUNCTION(arm)

#if TABLE == 1
/* A later major version: this header does not declare it. */
extern __attribute__((visibility("default"))) const size_t gradrail_transport_v7[4];
const size_t gradrail_transport_v7[4] = {sizeof(gradrail_transport_v7)};
#elif TABLE == 2
/* A table without the last functions of version 1.0. */
const gradrail_transport_table gradrail_transport_v1 = {
    .table_bytes = offsetof(gradrail_transport_table, wait_fd), REQUIRED, FUNCTION(put)};
#elif TABLE == 3
const gradrail_transport_table gradrail_transport_v1 = {.table_bytes = sizeof(gradrail_transport_table), REQUIRED};
#elif TABLE == 4
/* A later minor version: more functions at the end. */
struct later_table {
  gradrail_transport_table table;
  void (*later[3])(void);
};
extern __attribute__((visibility("default"))) const struct later_table later __asm__("gradrail_transport_v1");
const struct later_table later = {.table = {.table_bytes = sizeof(struct later_table), REQUIRED, FUNCTION(put)},
                                  .later = {never, never, never}};
#else
__attribute__((visibility("default"))) const int something_else = 1;
#endif
