# Compile flags of all targets of gradrail, and gradrail_library().
include(GNUInstallDirs)

add_library(gradrail_options INTERFACE)
target_compile_options(gradrail_options INTERFACE -Wall -Wextra)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(gradrail_options INTERFACE -Wshadow=local)
endif()
target_compile_options(gradrail_options INTERFACE -Wno-missing-field-initializers)
if(GRADRAIL_WERROR)
  target_compile_options(gradrail_options INTERFACE -Werror)
endif()
if(GRADRAIL_SANITIZE)
  add_compile_options(-fsanitize=${GRADRAIL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${GRADRAIL_SANITIZE})
  if(NOT GRADRAIL_FUZZ)
    add_compile_options(-O1) # compiles in two thirds of the time of -O2; the fuzzers need the speed of -O2
  endif()
  if(GRADRAIL_SANITIZE MATCHES undefined)
    # The vptr check opens a pipe to probe memory. In a test without free descriptors, it reports errors that do not
    # exist.
    add_compile_options(-fno-sanitize=vptr)
  endif()
endif()
# mold links the programs of the tests several times as fast as GNU ld.
find_program(GRADRAIL_MOLD mold)
mark_as_advanced(GRADRAIL_MOLD)
if(GRADRAIL_MOLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12.1)
  # Each segment begins on a page of its own. Otherwise mold 1.10 may place thread-local memory of a few bytes before a
  # page, and a read-only segment begins there, in a page that does not exist: the loader then refuses the program.
  add_link_options(-fuse-ld=mold -Wl,-z,separate-loadable-segments)
endif()
target_include_directories(gradrail_options INTERFACE ${PROJECT_BINARY_DIR}) # generated headers

# gradrail_compile_quickly(): the targets of this folder compile in two thirds of the time of -O2. No step of a run
# passes there.
macro(gradrail_compile_quickly)
  add_compile_options($<$<CONFIG:RelWithDebInfo>:-O1>)
endmacro()

# gradrail_library(<folder> SOURCES … [PUBLIC libs…] [PRIVATE libs…]) defines gradrail::<folder> for one folder.
function(gradrail_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(gradrail_${name} STATIC ${ARG_SOURCES})
  add_library(gradrail::${name} ALIAS gradrail_${name})
  target_link_libraries(gradrail_${name} PUBLIC ${ARG_PUBLIC} PRIVATE gradrail_options ${ARG_PRIVATE})
endfunction()

# gradrail_umbrella(<name> <folder targets>…) defines gradrail::<name>, which links all of these targets.
function(gradrail_umbrella name)
  add_library(gradrail_${name} INTERFACE)
  add_library(gradrail::${name} ALIAS gradrail_${name})
  list(TRANSFORM ARGN PREPEND gradrail::)
  target_link_libraries(gradrail_${name} INTERFACE ${ARGN})
endfunction()

# gradrail_protobuf(<name> <folder>/<file>.proto): gradrail_<name> has the messages of one file, in the build tree's
# <folder>/<file>.pb.h.
function(gradrail_protobuf name proto)
  string(REPLACE ".proto" ".pb" stem ${PROJECT_BINARY_DIR}/${proto})
  add_custom_command(
    OUTPUT ${stem}.cc ${stem}.h
    COMMAND protobuf::protoc --proto_path=${PROJECT_SOURCE_DIR} --cpp_out=${PROJECT_BINARY_DIR} ${proto}
    DEPENDS ${PROJECT_SOURCE_DIR}/${proto})
  add_library(gradrail_${name} STATIC ${stem}.cc)
  target_compile_options(gradrail_${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  target_include_directories(gradrail_${name} PUBLIC ${PROJECT_BINARY_DIR})
  target_link_libraries(gradrail_${name} PUBLIC protobuf::libprotobuf)
endfunction()

# gradrail_grpc(<name> <folder>/<file>.proto): the same with the services of the file, in <folder>/<file>.grpc.pb.h.
find_program(GRADRAIL_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)
function(gradrail_grpc name proto)
  string(REPLACE ".proto" "" stem ${PROJECT_BINARY_DIR}/${proto})
  add_custom_command(
    OUTPUT ${stem}.pb.cc ${stem}.grpc.pb.cc ${stem}.pb.h ${stem}.grpc.pb.h
    COMMAND protobuf::protoc --proto_path=${PROJECT_SOURCE_DIR} --cpp_out=${PROJECT_BINARY_DIR}
            --grpc_out=${PROJECT_BINARY_DIR} --plugin=protoc-gen-grpc=${GRADRAIL_GRPC_PLUGIN} ${proto}
    DEPENDS ${PROJECT_SOURCE_DIR}/${proto})
  add_library(gradrail_${name} STATIC ${stem}.pb.cc ${stem}.grpc.pb.cc)
  target_compile_options(gradrail_${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  target_include_directories(gradrail_${name} PUBLIC ${PROJECT_BINARY_DIR})
  target_link_libraries(gradrail_${name} PUBLIC gRPC::grpc++ protobuf::libprotobuf)
endfunction()
