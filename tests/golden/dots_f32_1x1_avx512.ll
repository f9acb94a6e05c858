; ModuleID = "dots_f32_1x1"
target triple = "x86_64-unknown-linux-gnu"
target datalayout = ""

define void @"dots_f32_1x1"(ptr %"job", i64 %"part") "min-legal-vector-width"="512" "no-builtins" "prefer-vector-width"="512" nounwind
{
entry:
  %"reg" = alloca <16 x float>
  %"reg.1" = alloca <16 x float>
  %"reg.2" = alloca <16 x float>
  %"reg.3" = alloca <16 x float>
  br label %"body"
body:
  %"load" = load i64, ptr %"job", align 8
  %"at" = getelementptr i8, ptr %"job", i64 8
  %"load.1" = load i64, ptr %"at", align 8
  %"at.1" = getelementptr i8, ptr %"job", i64 16
  %"load.2" = load ptr, ptr %"at.1", align 8
  %"at.2" = getelementptr i8, ptr %"job", i64 24
  %"load.3" = load i64, ptr %"at.2", align 8
  %"at.3" = getelementptr i8, ptr %"job", i64 32
  %"load.4" = load ptr, ptr %"at.3", align 8
  %"at.4" = getelementptr i8, ptr %"job", i64 40
  %"load.5" = load i64, ptr %"at.4", align 8
  %"at.5" = getelementptr i8, ptr %"job", i64 48
  %"load.6" = load ptr, ptr %"at.5", align 8
  %"at.6" = getelementptr i8, ptr %"job", i64 56
  %"load.7" = load i64, ptr %"at.6", align 8
  %"at.7" = getelementptr i8, ptr %"job", i64 64
  %"load.8" = load i64, ptr %"at.7", align 8
  %"at.8" = getelementptr i8, ptr %"job", i64 72
  %"load.9" = load float, ptr %"at.8", align 4
  %"at.9" = getelementptr i8, ptr %"job", i64 80
  %"load.10" = load float, ptr %"at.9", align 4
  %"at.10" = getelementptr i8, ptr %"job", i64 88
  %"load.11" = load i64, ptr %"at.10", align 8
  %"mul" = mul i64 %"load.5", 0
  %"at.11" = getelementptr float, ptr %"load.4", i64 %"mul"
  %"mul.1" = mul i64 %"load", %"part"
  %"div" = udiv i64 %"mul.1", %"load.11"
  %"add" = add i64 %"part", 1
  %"mul.2" = mul i64 %"load", %"add"
  %"div.1" = udiv i64 %"mul.2", %"load.11"
  %"div.2" = udiv i64 %"load.1", 16
  %"mul.3" = mul i64 %"div.2", 16
  %"div.3" = udiv i64 %"load.1", 32
  %"mul.4" = mul i64 %"div.3", 32
  %"sub" = sub i64 %"div.1", %"div"
  %"div.4" = udiv i64 %"sub", 1
  %"add.1" = add i64 %"div", %"div.4"
  %".5" = icmp slt i64 %"div", %"add.1"
  br i1 %".5", label %"loop", label %"done"
loop:
  %"index" = phi  i64 [%"div", %"body"], [%"next.2", %"end.1"]
  %"mul.5" = mul i64 %"index", %"load.3"
  %"at.12" = getelementptr float, ptr %"load.2", i64 %"mul.5"
  store <16 x float> <float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0>, <16 x float>* %"reg"
  store <16 x float> <float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0>, <16 x float>* %"reg.1"
  %".9" = icmp slt i64 0, %"mul.4"
  br i1 %".9", label %"loop.1", label %"done.1"
done:
  %".41" = icmp slt i64 %"add.1", %"div.1"
  br i1 %".41", label %"loop.3", label %"done.3"
loop.1:
  %"index.1" = phi  i64 [0, %"loop"], [%"next", %"loop.1"]
  %"at.13" = getelementptr float, ptr %"at.11", i64 %"index.1"
  %"load.12" = load <16 x float>, ptr %"at.13", align 4
  %"at.14" = getelementptr float, ptr %"at.12", i64 %"index.1"
  %"load.13" = load <16 x float>, ptr %"at.14", align 4
  %"read" = load <16 x float>, <16 x float>* %"reg"
  %"fma" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"load.13", <16 x float> %"load.12", <16 x float> %"read")
  store <16 x float> %"fma", <16 x float>* %"reg"
  %"add.2" = add i64 %"index.1", 16
  %"at.15" = getelementptr float, ptr %"at.11", i64 %"add.2"
  %"load.14" = load <16 x float>, ptr %"at.15", align 4
  %"at.16" = getelementptr float, ptr %"at.12", i64 %"add.2"
  %"load.15" = load <16 x float>, ptr %"at.16", align 4
  %"read.1" = load <16 x float>, <16 x float>* %"reg.1"
  %"fma.1" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"load.15", <16 x float> %"load.14", <16 x float> %"read.1")
  store <16 x float> %"fma.1", <16 x float>* %"reg.1"
  %"next" = add nsw i64 %"index.1", 32
  %".13" = icmp slt i64 %"next", %"mul.4"
  br i1 %".13", label %"loop.1", label %"done.1"
done.1:
  %".15" = icmp slt i64 %"mul.4", %"mul.3"
  br i1 %".15", label %"loop.2", label %"done.2"
loop.2:
  %"index.2" = phi  i64 [%"mul.4", %"done.1"], [%"next.1", %"loop.2"]
  %"at.17" = getelementptr float, ptr %"at.11", i64 %"index.2"
  %"load.16" = load <16 x float>, ptr %"at.17", align 4
  %"at.18" = getelementptr float, ptr %"at.12", i64 %"index.2"
  %"load.17" = load <16 x float>, ptr %"at.18", align 4
  %"read.2" = load <16 x float>, <16 x float>* %"reg"
  %"fma.2" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"load.17", <16 x float> %"load.16", <16 x float> %"read.2")
  store <16 x float> %"fma.2", <16 x float>* %"reg"
  %"next.1" = add nsw i64 %"index.2", 16
  %".18" = icmp slt i64 %"next.1", %"mul.3"
  br i1 %".18", label %"loop.2", label %"done.2"
done.2:
  %"lt" = icmp slt i64 %"mul.3", %"load.1"
  br i1 %"lt", label %"then", label %"end"
then:
  %"sub.1" = sub i64 %"load.1", %"mul.3"
  %".21" = trunc i64 %"sub.1" to i32
  %".22" = insertelement <16 x i32> <i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef>, i32 %".21", i32 0
  %"splat" = shufflevector <16 x i32> %".22", <16 x i32> <i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"mask" = icmp sgt <16 x i32> %"splat", <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %"at.19" = getelementptr float, ptr %"at.11", i64 %"mul.3"
  %"load.18" = call <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %"at.19", i32 4, <16 x i1> %"mask", <16 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>)
  %"at.20" = getelementptr float, ptr %"at.12", i64 %"mul.3"
  %"load.19" = call <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %"at.20", i32 4, <16 x i1> %"mask", <16 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>)
  %"read.3" = load <16 x float>, <16 x float>* %"reg"
  %"fma.3" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"load.19", <16 x float> %"load.18", <16 x float> %"read.3")
  store <16 x float> %"fma.3", <16 x float>* %"reg"
  br label %"end"
end:
  %"read.4" = load <16 x float>, <16 x float>* %"reg"
  %"read.5" = load <16 x float>, <16 x float>* %"reg.1"
  %"add.3" = fadd <16 x float> %"read.4", %"read.5"
  %".25" = shufflevector <16 x float> %"add.3", <16 x float> %"add.3", <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %".26" = shufflevector <16 x float> %"add.3", <16 x float> %"add.3", <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %"sum" = fadd <8 x float> %".25", %".26"
  %".27" = shufflevector <8 x float> %"sum", <8 x float> %"sum", <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %".28" = shufflevector <8 x float> %"sum", <8 x float> %"sum", <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %"sum.1" = fadd <4 x float> %".27", %".28"
  %".29" = shufflevector <4 x float> %"sum.1", <4 x float> %"sum.1", <2 x i32> <i32 0, i32 1>
  %".30" = shufflevector <4 x float> %"sum.1", <4 x float> %"sum.1", <2 x i32> <i32 2, i32 3>
  %"sum.2" = fadd <2 x float> %".29", %".30"
  %".31" = shufflevector <2 x float> %"sum.2", <2 x float> %"sum.2", <1 x i32> <i32 0>
  %".32" = shufflevector <2 x float> %"sum.2", <2 x float> %"sum.2", <1 x i32> <i32 1>
  %"sum.3" = fadd <1 x float> %".31", %".32"
  %".33" = extractelement <1 x float> %"sum.3", i32 0
  %"mul.6" = fmul float %".33", %"load.9"
  %"eq" = fcmp oeq float %"load.10",              0x0
  br i1 %"eq", label %"then.1", label %"else"
then.1:
  %"mul.7" = mul i64 %"index", %"load.7"
  %"at.21" = getelementptr float, ptr %"load.6", i64 %"mul.7"
  %"mul.8" = mul i64 %"load.8", 0
  %"at.22" = getelementptr float, ptr %"at.21", i64 %"mul.8"
  store float %"mul.6", ptr %"at.22", align 4
  br label %"end.1"
end.1:
  %"next.2" = add nsw i64 %"index", 1
  %".39" = icmp slt i64 %"next.2", %"add.1"
  br i1 %".39", label %"loop", label %"done"
else:
  %"mul.9" = mul i64 %"index", %"load.7"
  %"at.23" = getelementptr float, ptr %"load.6", i64 %"mul.9"
  %"mul.10" = mul i64 %"load.8", 0
  %"at.24" = getelementptr float, ptr %"at.23", i64 %"mul.10"
  %"load.20" = load float, ptr %"at.24", align 4
  %"fma.4" = call float @"llvm.fma.f32"(float %"load.10", float %"load.20", float %"mul.6")
  store float %"fma.4", ptr %"at.24", align 4
  br label %"end.1"
loop.3:
  %"index.3" = phi  i64 [%"add.1", %"done"], [%"next.5", %"end.3"]
  %"mul.11" = mul i64 %"index.3", %"load.3"
  %"at.25" = getelementptr float, ptr %"load.2", i64 %"mul.11"
  store <16 x float> <float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0>, <16 x float>* %"reg.2"
  store <16 x float> <float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0>, <16 x float>* %"reg.3"
  %".45" = icmp slt i64 0, %"mul.4"
  br i1 %".45", label %"loop.4", label %"done.4"
done.3:
  ret void
loop.4:
  %"index.4" = phi  i64 [0, %"loop.3"], [%"next.3", %"loop.4"]
  %"at.26" = getelementptr float, ptr %"at.11", i64 %"index.4"
  %"load.21" = load <16 x float>, ptr %"at.26", align 4
  %"at.27" = getelementptr float, ptr %"at.25", i64 %"index.4"
  %"load.22" = load <16 x float>, ptr %"at.27", align 4
  %"read.6" = load <16 x float>, <16 x float>* %"reg.2"
  %"fma.5" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"load.22", <16 x float> %"load.21", <16 x float> %"read.6")
  store <16 x float> %"fma.5", <16 x float>* %"reg.2"
  %"add.4" = add i64 %"index.4", 16
  %"at.28" = getelementptr float, ptr %"at.11", i64 %"add.4"
  %"load.23" = load <16 x float>, ptr %"at.28", align 4
  %"at.29" = getelementptr float, ptr %"at.25", i64 %"add.4"
  %"load.24" = load <16 x float>, ptr %"at.29", align 4
  %"read.7" = load <16 x float>, <16 x float>* %"reg.3"
  %"fma.6" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"load.24", <16 x float> %"load.23", <16 x float> %"read.7")
  store <16 x float> %"fma.6", <16 x float>* %"reg.3"
  %"next.3" = add nsw i64 %"index.4", 32
  %".49" = icmp slt i64 %"next.3", %"mul.4"
  br i1 %".49", label %"loop.4", label %"done.4"
done.4:
  %".51" = icmp slt i64 %"mul.4", %"mul.3"
  br i1 %".51", label %"loop.5", label %"done.5"
loop.5:
  %"index.5" = phi  i64 [%"mul.4", %"done.4"], [%"next.4", %"loop.5"]
  %"at.30" = getelementptr float, ptr %"at.11", i64 %"index.5"
  %"load.25" = load <16 x float>, ptr %"at.30", align 4
  %"at.31" = getelementptr float, ptr %"at.25", i64 %"index.5"
  %"load.26" = load <16 x float>, ptr %"at.31", align 4
  %"read.8" = load <16 x float>, <16 x float>* %"reg.2"
  %"fma.7" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"load.26", <16 x float> %"load.25", <16 x float> %"read.8")
  store <16 x float> %"fma.7", <16 x float>* %"reg.2"
  %"next.4" = add nsw i64 %"index.5", 16
  %".54" = icmp slt i64 %"next.4", %"mul.3"
  br i1 %".54", label %"loop.5", label %"done.5"
done.5:
  %"lt.1" = icmp slt i64 %"mul.3", %"load.1"
  br i1 %"lt.1", label %"then.2", label %"end.2"
then.2:
  %"sub.2" = sub i64 %"load.1", %"mul.3"
  %".57" = trunc i64 %"sub.2" to i32
  %".58" = insertelement <16 x i32> <i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef>, i32 %".57", i32 0
  %"splat.1" = shufflevector <16 x i32> %".58", <16 x i32> <i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"mask.1" = icmp sgt <16 x i32> %"splat.1", <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %"at.32" = getelementptr float, ptr %"at.11", i64 %"mul.3"
  %"load.27" = call <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %"at.32", i32 4, <16 x i1> %"mask.1", <16 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>)
  %"at.33" = getelementptr float, ptr %"at.25", i64 %"mul.3"
  %"load.28" = call <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %"at.33", i32 4, <16 x i1> %"mask.1", <16 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>)
  %"read.9" = load <16 x float>, <16 x float>* %"reg.2"
  %"fma.8" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"load.28", <16 x float> %"load.27", <16 x float> %"read.9")
  store <16 x float> %"fma.8", <16 x float>* %"reg.2"
  br label %"end.2"
end.2:
  %"read.10" = load <16 x float>, <16 x float>* %"reg.2"
  %"read.11" = load <16 x float>, <16 x float>* %"reg.3"
  %"add.5" = fadd <16 x float> %"read.10", %"read.11"
  %".61" = shufflevector <16 x float> %"add.5", <16 x float> %"add.5", <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %".62" = shufflevector <16 x float> %"add.5", <16 x float> %"add.5", <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %"sum.4" = fadd <8 x float> %".61", %".62"
  %".63" = shufflevector <8 x float> %"sum.4", <8 x float> %"sum.4", <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %".64" = shufflevector <8 x float> %"sum.4", <8 x float> %"sum.4", <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %"sum.5" = fadd <4 x float> %".63", %".64"
  %".65" = shufflevector <4 x float> %"sum.5", <4 x float> %"sum.5", <2 x i32> <i32 0, i32 1>
  %".66" = shufflevector <4 x float> %"sum.5", <4 x float> %"sum.5", <2 x i32> <i32 2, i32 3>
  %"sum.6" = fadd <2 x float> %".65", %".66"
  %".67" = shufflevector <2 x float> %"sum.6", <2 x float> %"sum.6", <1 x i32> <i32 0>
  %".68" = shufflevector <2 x float> %"sum.6", <2 x float> %"sum.6", <1 x i32> <i32 1>
  %"sum.7" = fadd <1 x float> %".67", %".68"
  %".69" = extractelement <1 x float> %"sum.7", i32 0
  %"mul.12" = fmul float %".69", %"load.9"
  %"eq.1" = fcmp oeq float %"load.10",              0x0
  br i1 %"eq.1", label %"then.3", label %"else.1"
then.3:
  %"mul.13" = mul i64 %"index.3", %"load.7"
  %"at.34" = getelementptr float, ptr %"load.6", i64 %"mul.13"
  %"mul.14" = mul i64 %"load.8", 0
  %"at.35" = getelementptr float, ptr %"at.34", i64 %"mul.14"
  store float %"mul.12", ptr %"at.35", align 4
  br label %"end.3"
end.3:
  %"next.5" = add nsw i64 %"index.3", 1
  %".75" = icmp slt i64 %"next.5", %"div.1"
  br i1 %".75", label %"loop.3", label %"done.3"
else.1:
  %"mul.15" = mul i64 %"index.3", %"load.7"
  %"at.36" = getelementptr float, ptr %"load.6", i64 %"mul.15"
  %"mul.16" = mul i64 %"load.8", 0
  %"at.37" = getelementptr float, ptr %"at.36", i64 %"mul.16"
  %"load.29" = load float, ptr %"at.37", align 4
  %"fma.9" = call float @"llvm.fma.f32"(float %"load.10", float %"load.29", float %"mul.12")
  store float %"fma.9", ptr %"at.37", align 4
  br label %"end.3"
}

declare <16 x float> @"llvm.fma.v16f32"(<16 x float> %".1", <16 x float> %".2", <16 x float> %".3")

declare <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %".1", i32 %".2", <16 x i1> %".3", <16 x float> %".4")

declare float @"llvm.fma.f32"(float %".1", float %".2", float %".3")
