; ModuleID = "pack_f32_8_any"
target triple = "aarch64-unknown-linux-gnu"
target datalayout = ""

define void @"pack_f32_8_any"(i64 %"kc", i64 %"width", i64 %"valid", ptr noalias %"source", i64 %"step_i", i64 %"step_p", ptr noalias %"dst") "no-builtins" nounwind
{
entry:
  br label %"body"
body:
  %"lt" = icmp slt i64 %"valid", %"width"
  br i1 %"lt", label %"then", label %"end"
then:
  %".11" = icmp slt i64 0, %"kc"
  br i1 %".11", label %"loop", label %"done"
end:
  %".18" = icmp slt i64 0, %"kc"
  br i1 %".18", label %"loop.1", label %"done.1"
loop:
  %"index" = phi  i64 [0, %"then"], [%"next", %"loop"]
  %"mul" = mul i64 %"index", %"width"
  %"at" = getelementptr float, ptr %"dst", i64 %"mul"
  store <4 x float> <float              0x0, float              0x0, float              0x0, float              0x0>, ptr %"at", align 4
  %"mul.1" = mul i64 %"index", %"width"
  %"at.1" = getelementptr float, ptr %"dst", i64 %"mul.1"
  %"at.2" = getelementptr float, ptr %"at.1", i64 4
  store <4 x float> <float              0x0, float              0x0, float              0x0, float              0x0>, ptr %"at.2", align 4
  %"next" = add nsw i64 %"index", 1
  %".15" = icmp slt i64 %"next", %"kc"
  br i1 %".15", label %"loop", label %"done"
done:
  br label %"end"
loop.1:
  %"index.1" = phi  i64 [0, %"end"], [%"next.2", %"done.2"]
  %".20" = icmp slt i64 0, %"valid"
  br i1 %".20", label %"loop.2", label %"done.2"
done.1:
  ret void
loop.2:
  %"index.2" = phi  i64 [0, %"loop.1"], [%"next.1", %"loop.2"]
  %"mul.2" = mul i64 %"index.2", %"step_i"
  %"at.3" = getelementptr float, ptr %"source", i64 %"mul.2"
  %"mul.3" = mul i64 %"index.1", %"step_p"
  %"at.4" = getelementptr float, ptr %"at.3", i64 %"mul.3"
  %"load" = load float, ptr %"at.4", align 4
  %"mul.4" = mul i64 %"index.1", %"width"
  %"at.5" = getelementptr float, ptr %"dst", i64 %"mul.4"
  %"at.6" = getelementptr float, ptr %"at.5", i64 %"index.2"
  store float %"load", ptr %"at.6", align 4
  %"next.1" = add nsw i64 %"index.2", 1
  %".23" = icmp slt i64 %"next.1", %"valid"
  br i1 %".23", label %"loop.2", label %"done.2"
done.2:
  %"next.2" = add nsw i64 %"index.1", 1
  %".25" = icmp slt i64 %"next.2", %"kc"
  br i1 %".25", label %"loop.1", label %"done.1"
}
