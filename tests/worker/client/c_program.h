#ifndef GRADRAIL_TESTS_CLIENT_C_PROGRAM_H
#define GRADRAIL_TESTS_CLIENT_C_PROGRAM_H

/* Compiled as C: what fails is returned as a sentence, NULL when all went well. */

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

const char* c_program_trains(const char* ps_hosts, const char* worker_hosts, uint32_t task_index);
const char* c_program_saves(const char* ps_hosts, const char* worker_hosts);
const char* c_program_is_refused(const char* ps_hosts, const char* worker_hosts);
const char* c_program_is_interrupted(const char* ps_hosts, const char* worker_hosts);
const char* c_program_has_a_short_struct(const char* ps_hosts, const char* worker_hosts);
const char* c_program_makes_mistakes(const char* ps_hosts, const char* worker_hosts);

#ifdef __cplusplus
}
#endif

#endif
