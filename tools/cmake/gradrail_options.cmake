# Compile flags of every target of ours, and gradrail_library().
include(GNUInstallDirs)

add_library(gradrail_options INTERFACE)
target_compile_options(gradrail_options INTERFACE -Wall -Wextra -Wshadow=local -Wno-missing-field-initializers)
if(GRADRAIL_WERROR)
  target_compile_options(gradrail_options INTERFACE -Werror)
endif()
if(GRADRAIL_SANITIZE)
  add_compile_options(-fsanitize=${GRADRAIL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${GRADRAIL_SANITIZE})
  if(GRADRAIL_SANITIZE MATCHES undefined)
    # The vptr check opens a pipe to probe memory: a test that runs out of descriptors makes it report what is not there.
    add_compile_options(-fno-sanitize=vptr)
  endif()
endif()
target_include_directories(gradrail_options INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                                      $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}>)

# gradrail_library(<folder> SOURCES … [PUBLIC libs…] [PRIVATE libs…]): the target of one folder, gradrail::<folder>.
function(gradrail_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(gradrail_${name} STATIC ${ARG_SOURCES})
  add_library(gradrail::${name} ALIAS gradrail_${name})
  set_target_properties(gradrail_${name} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(gradrail_${name} PUBLIC cxx_std_20) # travels to installed users, CMAKE_CXX_STANDARD does not
  target_link_libraries(gradrail_${name} PUBLIC ${ARG_PUBLIC} PRIVATE $<BUILD_INTERFACE:gradrail_options> ${ARG_PRIVATE})
  target_include_directories(gradrail_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                                     $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/gradrail>)
  set_property(GLOBAL APPEND PROPERTY GRADRAIL_LIBRARIES gradrail_${name})
endfunction()
