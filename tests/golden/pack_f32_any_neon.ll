; ModuleID = "pack_f32_8_any"
target triple = "aarch64-unknown-linux-gnu"
target datalayout = ""

define void @"pack_f32_8_any"(i64 %"kc", i64 %"width", i64 %"valid", ptr noalias %"source", i64 %"step_i", i64 %"step_p", ptr noalias %"dst") "no-builtins" nounwind
{
entry:
  br label %"body"
body:
  %".10" = icmp slt i64 0, %"kc"
  br i1 %".10", label %"loop", label %"done"
loop:
  %"index" = phi  i64 [0, %"body"], [%"next.1", %"done.1"]
  %".12" = icmp slt i64 0, %"valid"
  br i1 %".12", label %"loop.1", label %"done.1"
done:
  ret void
loop.1:
  %"index.1" = phi  i64 [0, %"loop"], [%"next", %"loop.1"]
  %"mul" = mul i64 %"index.1", %"step_i"
  %"at" = getelementptr float, ptr %"source", i64 %"mul"
  %"mul.1" = mul i64 %"index", %"step_p"
  %"at.1" = getelementptr float, ptr %"at", i64 %"mul.1"
  %"load" = load float, ptr %"at.1", align 4
  %"mul.2" = mul i64 %"index", %"width"
  %"at.2" = getelementptr float, ptr %"dst", i64 %"mul.2"
  %"at.3" = getelementptr float, ptr %"at.2", i64 %"index.1"
  store float %"load", ptr %"at.3", align 4
  %"next" = add nsw i64 %"index.1", 1
  %".15" = icmp slt i64 %"next", %"valid"
  br i1 %".15", label %"loop.1", label %"done.1"
done.1:
  %"next.1" = add nsw i64 %"index", 1
  %".17" = icmp slt i64 %"next.1", %"kc"
  br i1 %".17", label %"loop", label %"done"
}
