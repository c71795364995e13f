# onnxc_add_model(<target> MODEL <file.onnx>
#                 [NAME <identifier>] [WEIGHTS <file>] [DIMS <dim>...]
#                 [CPU <level>] [TARGET <triple>] [OPTIONS <option>...])
#
# Compiles a model when the project is built, and adds a static library <target> of it. What links <target> finds the
# header: #include "<name>.h".
#
#   MODEL    the model, relative to the current source folder; the library is rebuilt when it or its external data change
#   NAME     prefix of all identifiers and name of the header; default: <target>, as a lower-case identifier
#   WEIGHTS  puts the weights into this file, relative to the current binary folder, instead of the object; the target's
#            property ONNXC_WEIGHTS_FILE holds its path
#   DIMS     fixed or bounded dimensions: N=1 "T<=512"
#   CPU      CPU level, as of onnxc --cpu; default: the variable ONNXC_CPU, else onnxc's own
#   TARGET   target triple; default: the variable ONNXC_TARGET, else made from CMAKE_SYSTEM_NAME, CMAKE_SYSTEM_PROCESSOR
#            and the C or C++ compiler
#   OPTIONS  more options of onnxc
#
# The compiler is the cache variable ONNXC_EXECUTABLE; the package looks for it where it was installed, then in the PATH.

include_guard(GLOBAL)
cmake_policy(PUSH)
cmake_policy(VERSION 3.20)

find_program(ONNXC_EXECUTABLE onnxc
  HINTS "${CMAKE_CURRENT_LIST_DIR}/../target/release"   # the source tree
  DOC "The ONNX compiler"
  NO_CMAKE_FIND_ROOT_PATH)

# The processor's name in target triples.
function(_onnxc_arch out)
  set(arch "${CMAKE_SYSTEM_PROCESSOR}")
  if(APPLE AND CMAKE_OSX_ARCHITECTURES)
    set(arch "${CMAKE_OSX_ARCHITECTURES}")
    list(LENGTH arch n)
    if(n GREATER 1)
      message(FATAL_ERROR "onnxc_add_model: CMAKE_OSX_ARCHITECTURES is \"${arch}\", expected one architecture; "
                          "build each one and join them with lipo")
    endif()
  elseif(MSVC AND MSVC_CXX_ARCHITECTURE_ID)
    set(arch "${MSVC_CXX_ARCHITECTURE_ID}")
  elseif(MSVC AND MSVC_C_ARCHITECTURE_ID)
    set(arch "${MSVC_C_ARCHITECTURE_ID}")
  endif()
  string(TOLOWER "${arch}" arch)
  if(arch MATCHES "^(x86_64|amd64|x64)$")
    set(arch x86_64)
  elseif(arch MATCHES "^(aarch64|arm64|arm64e)$")
    set(arch aarch64)
  elseif(arch MATCHES "^riscv64")
    set(arch riscv64gc)
  else()
    message(FATAL_ERROR "onnxc_add_model: CMAKE_SYSTEM_PROCESSOR is \"${CMAKE_SYSTEM_PROCESSOR}\", expected x86_64, aarch64 "
                        "or riscv64; set ONNXC_TARGET to a target triple")
  endif()
  set(${out} "${arch}" PARENT_SCOPE)
endfunction()

# The target triple of this build.
function(_onnxc_triple out)
  if(ONNXC_TARGET)
    set(${out} "${ONNXC_TARGET}" PARENT_SCOPE)
    return()
  endif()
  _onnxc_arch(arch)
  set(system "${CMAKE_SYSTEM_NAME}")
  if(system STREQUAL "Linux")
    set(triple "${arch}-unknown-linux-gnu")
  elseif(system STREQUAL "Android")
    set(triple "${arch}-linux-android")
  elseif(system STREQUAL "Darwin")
    set(triple "${arch}-apple-darwin")
  elseif(system STREQUAL "iOS")
    set(triple "${arch}-apple-ios")
  elseif(system STREQUAL "Windows" AND MINGW)
    set(triple "${arch}-pc-windows-gnu")
  elseif(system STREQUAL "Windows")
    set(triple "${arch}-pc-windows-msvc")
  elseif(system STREQUAL "FreeBSD")
    set(triple "${arch}-unknown-freebsd")
  elseif(system STREQUAL "Generic")
    set(triple "${arch}-unknown-none-elf")
  else()
    message(FATAL_ERROR "onnxc_add_model: no target triple is known for CMAKE_SYSTEM_NAME \"${system}\"; "
                        "set ONNXC_TARGET to one")
  endif()
  set(${out} "${triple}" PARENT_SCOPE)
endfunction()

function(onnxc_add_model target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "MODEL;NAME;WEIGHTS;CPU;TARGET" "DIMS;OPTIONS")
  if(arg_UNPARSED_ARGUMENTS OR arg_KEYWORDS_MISSING_VALUES)
    message(FATAL_ERROR "onnxc_add_model(${target}): found \"${arg_UNPARSED_ARGUMENTS}${arg_KEYWORDS_MISSING_VALUES}\", "
                        "expected MODEL, NAME, WEIGHTS, DIMS, CPU, TARGET or OPTIONS, each with a value")
  endif()
  if(NOT arg_MODEL)
    message(FATAL_ERROR "onnxc_add_model(${target}): MODEL is missing")
  endif()
  if(NOT ONNXC_EXECUTABLE)
    message(FATAL_ERROR "onnxc_add_model(${target}): onnxc was not found; add it to the PATH, build it with "
                        "\"cargo build --release\", or set ONNXC_EXECUTABLE")
  endif()

  set(name "${arg_NAME}")
  if(NOT name)
    string(MAKE_C_IDENTIFIER "${target}" name)
    string(TOLOWER "${name}" name)
  endif()
  get_filename_component(model "${arg_MODEL}" ABSOLUTE)
  if(NOT arg_TARGET)
    _onnxc_triple(arg_TARGET)
  endif()
  if(NOT arg_CPU)
    set(arg_CPU "${ONNXC_CPU}")
  endif()

  set(folder "${CMAKE_CURRENT_BINARY_DIR}/onnxc/${target}")
  set(object "${folder}/${name}.o")
  if(arg_TARGET MATCHES "msvc")
    set(object "${folder}/${name}.obj")
  endif()
  set(outputs "${object}" "${folder}/${name}.h")
  set(command "${ONNXC_EXECUTABLE}" "${model}" -o "${object}" --name "${name}" --target "${arg_TARGET}")
  if(arg_CPU)
    list(APPEND command --cpu "${arg_CPU}")
  endif()
  foreach(dim IN LISTS arg_DIMS)
    list(APPEND command --dim "${dim}")
  endforeach()
  if(arg_WEIGHTS)
    get_filename_component(weights "${arg_WEIGHTS}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_BINARY_DIR}")
    list(APPEND command --weights "file=${weights}")
    list(APPEND outputs "${weights}")
  endif()

  file(MAKE_DIRECTORY "${folder}")
  add_custom_command(
    OUTPUT ${outputs}
    COMMAND ${command} ${arg_OPTIONS} -MD "${object}.d"
    DEPENDS "${model}" "${ONNXC_EXECUTABLE}"
    DEPFILE "${object}.d"
    COMMENT "Compiling ${arg_MODEL}"
    VERBATIM)

  add_library(${target} STATIC ${outputs})
  set_source_files_properties("${object}" PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if("C" IN_LIST languages)
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C)
  else()
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  endif()
  target_include_directories(${target} SYSTEM INTERFACE "$<BUILD_INTERFACE:${folder}>")
  if(arg_WEIGHTS)
    set_target_properties(${target} PROPERTIES ONNXC_WEIGHTS_FILE "${weights}")
  endif()
endfunction()

cmake_policy(POP)
