; ModuleID = "pack_f64_4_along"
target triple = "x86_64-unknown-linux-gnu"
target datalayout = ""

define void @"pack_f64_4_along"(i64 %"kc", i64 %"width", i64 %"valid", ptr noalias %"source", i64 %"step_i", i64 %"step_p", ptr noalias %"dst") "min-legal-vector-width"="512" "no-builtins" "prefer-vector-width"="512" nounwind
{
entry:
  br label %"body"
body:
  %"sub" = sub i64 %"valid", 1
  %"lt" = icmp slt i64 %"sub", 0
  %"select" = select  i1 %"lt", i64 %"sub", i64 0
  %"mul" = mul i64 %"select", %"step_i"
  %"at" = getelementptr double, ptr %"source", i64 %"mul"
  %"lt.1" = icmp slt i64 %"sub", 1
  %"select.1" = select  i1 %"lt.1", i64 %"sub", i64 1
  %"mul.1" = mul i64 %"select.1", %"step_i"
  %"at.1" = getelementptr double, ptr %"source", i64 %"mul.1"
  %"lt.2" = icmp slt i64 %"sub", 2
  %"select.2" = select  i1 %"lt.2", i64 %"sub", i64 2
  %"mul.2" = mul i64 %"select.2", %"step_i"
  %"at.2" = getelementptr double, ptr %"source", i64 %"mul.2"
  %"lt.3" = icmp slt i64 %"sub", 3
  %"select.3" = select  i1 %"lt.3", i64 %"sub", i64 3
  %"mul.3" = mul i64 %"select.3", %"step_i"
  %"at.3" = getelementptr double, ptr %"source", i64 %"mul.3"
  %"div" = udiv i64 %"kc", 4
  %"mul.4" = mul i64 %"div", 4
  %".10" = icmp slt i64 0, %"mul.4"
  br i1 %".10", label %"loop", label %"done"
loop:
  %"index" = phi  i64 [0, %"body"], [%"next", %"loop"]
  %"mul.5" = mul i64 %"valid", %"step_i"
  %"lt.4" = icmp slt i64 %"kc", 128
  %"select.4" = select  i1 %"lt.4", i64 %"kc", i64 128
  %"add" = add i64 %"index", %"select.4"
  %"lt.5" = icmp slt i64 %"add", %"kc"
  %"sub.1" = sub i64 %"add", %"kc"
  %"add.1" = add i64 %"sub.1", %"mul.5"
  %"select.5" = select  i1 %"lt.5", i64 %"add", i64 %"add.1"
  %"at.4" = getelementptr double, ptr %"at", i64 %"select.5"
  call void @"llvm.prefetch.p0"(ptr %"at.4", i32 0, i32 3, i32 1)
  %"at.5" = getelementptr double, ptr %"at.1", i64 %"select.5"
  call void @"llvm.prefetch.p0"(ptr %"at.5", i32 0, i32 3, i32 1)
  %"at.6" = getelementptr double, ptr %"at.2", i64 %"select.5"
  call void @"llvm.prefetch.p0"(ptr %"at.6", i32 0, i32 3, i32 1)
  %"at.7" = getelementptr double, ptr %"at.3", i64 %"select.5"
  call void @"llvm.prefetch.p0"(ptr %"at.7", i32 0, i32 3, i32 1)
  %"at.8" = getelementptr double, ptr %"at", i64 %"index"
  %"load" = load <4 x double>, ptr %"at.8", align 8
  %"at.9" = getelementptr double, ptr %"at.1", i64 %"index"
  %"load.1" = load <4 x double>, ptr %"at.9", align 8
  %"at.10" = getelementptr double, ptr %"at.2", i64 %"index"
  %"load.2" = load <4 x double>, ptr %"at.10", align 8
  %"at.11" = getelementptr double, ptr %"at.3", i64 %"index"
  %"load.3" = load <4 x double>, ptr %"at.11", align 8
  %"shuffle" = shufflevector <4 x double> %"load", <4 x double> %"load.2", <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  %"shuffle.1" = shufflevector <4 x double> %"load", <4 x double> %"load.2", <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  %"shuffle.2" = shufflevector <4 x double> %"load.1", <4 x double> %"load.3", <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  %"shuffle.3" = shufflevector <4 x double> %"load.1", <4 x double> %"load.3", <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  %"shuffle.4" = shufflevector <4 x double> %"shuffle", <4 x double> %"shuffle.2", <4 x i32> <i32 0, i32 4, i32 2, i32 6>
  %"shuffle.5" = shufflevector <4 x double> %"shuffle", <4 x double> %"shuffle.2", <4 x i32> <i32 1, i32 5, i32 3, i32 7>
  %"shuffle.6" = shufflevector <4 x double> %"shuffle.1", <4 x double> %"shuffle.3", <4 x i32> <i32 0, i32 4, i32 2, i32 6>
  %"shuffle.7" = shufflevector <4 x double> %"shuffle.1", <4 x double> %"shuffle.3", <4 x i32> <i32 1, i32 5, i32 3, i32 7>
  %"mul.6" = mul i64 %"index", %"width"
  %"at.12" = getelementptr double, ptr %"dst", i64 %"mul.6"
  store <4 x double> %"shuffle.4", ptr %"at.12", align 8
  %"add.2" = add i64 %"index", 1
  %"mul.7" = mul i64 %"add.2", %"width"
  %"at.13" = getelementptr double, ptr %"dst", i64 %"mul.7"
  store <4 x double> %"shuffle.5", ptr %"at.13", align 8
  %"add.3" = add i64 %"index", 2
  %"mul.8" = mul i64 %"add.3", %"width"
  %"at.14" = getelementptr double, ptr %"dst", i64 %"mul.8"
  store <4 x double> %"shuffle.6", ptr %"at.14", align 8
  %"add.4" = add i64 %"index", 3
  %"mul.9" = mul i64 %"add.4", %"width"
  %"at.15" = getelementptr double, ptr %"dst", i64 %"mul.9"
  store <4 x double> %"shuffle.7", ptr %"at.15", align 8
  %"next" = add nsw i64 %"index", 4
  %".20" = icmp slt i64 %"next", %"mul.4"
  br i1 %".20", label %"loop", label %"done"
done:
  %"lt.6" = icmp slt i64 %"valid", %"width"
  br i1 %"lt.6", label %"then", label %"end"
then:
  %".23" = icmp slt i64 %"mul.4", %"kc"
  br i1 %".23", label %"loop.1", label %"done.1"
end:
  %".29" = icmp slt i64 %"mul.4", %"kc"
  br i1 %".29", label %"loop.2", label %"done.2"
loop.1:
  %"index.1" = phi  i64 [%"mul.4", %"then"], [%"next.1", %"loop.1"]
  %"mul.10" = mul i64 %"index.1", %"width"
  %"at.16" = getelementptr double, ptr %"dst", i64 %"mul.10"
  store <4 x double> <double              0x0, double              0x0, double              0x0, double              0x0>, ptr %"at.16", align 8
  %"next.1" = add nsw i64 %"index.1", 1
  %".26" = icmp slt i64 %"next.1", %"kc"
  br i1 %".26", label %"loop.1", label %"done.1"
done.1:
  br label %"end"
loop.2:
  %"index.2" = phi  i64 [%"mul.4", %"end"], [%"next.3", %"done.3"]
  %".31" = icmp slt i64 0, %"valid"
  br i1 %".31", label %"loop.3", label %"done.3"
done.2:
  ret void
loop.3:
  %"index.3" = phi  i64 [0, %"loop.2"], [%"next.2", %"loop.3"]
  %"mul.11" = mul i64 %"index.3", %"step_i"
  %"at.17" = getelementptr double, ptr %"source", i64 %"mul.11"
  %"at.18" = getelementptr double, ptr %"at.17", i64 %"index.2"
  %"load.4" = load double, ptr %"at.18", align 8
  %"mul.12" = mul i64 %"index.2", %"width"
  %"at.19" = getelementptr double, ptr %"dst", i64 %"mul.12"
  %"at.20" = getelementptr double, ptr %"at.19", i64 %"index.3"
  store double %"load.4", ptr %"at.20", align 8
  %"next.2" = add nsw i64 %"index.3", 1
  %".34" = icmp slt i64 %"next.2", %"valid"
  br i1 %".34", label %"loop.3", label %"done.3"
done.3:
  %"next.3" = add nsw i64 %"index.2", 1
  %".36" = icmp slt i64 %"next.3", %"kc"
  br i1 %".36", label %"loop.2", label %"done.2"
}

declare void @"llvm.prefetch.p0"(ptr %".1", i32 %".2", i32 %".3", i32 %".4")
