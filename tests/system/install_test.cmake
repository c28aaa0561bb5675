# Installs the build into an empty prefix, and uses the library from CMake, pkg-config, C and Python, and a plug-in.
add_test(NAME install_consumer
         COMMAND ${PROJECT_SOURCE_DIR}/tests/system/install_test.sh ${PROJECT_BINARY_DIR} ${CMAKE_CXX_COMPILER}
                 ${CMAKE_C_COMPILER} "${GRADRAIL_SANITIZE}")
set_tests_properties(install_consumer PROPERTIES LABELS system TIMEOUT 300)
# Each header alone takes a compiler most of a second. install_consumer compiles all of them in two orders.
add_test(NAME headers COMMAND ${PROJECT_SOURCE_DIR}/tests/system/headers_test.sh ${CMAKE_CXX_COMPILER})
set_tests_properties(headers PROPERTIES LABELS "system;long" TIMEOUT 300)
